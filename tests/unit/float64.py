"""Whole models in float64, where an identity holds to ten digits on any processor."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel


def to_float64(model: PreTrainedModel) -> PreTrainedModel:
    """The same numbers, with room behind them."""
    model.set_experts_implementation("eager")  # torch's grouped products know no float64
    return model.double()


@contextmanager
def in_float64() -> Iterator[None]:
    """Within, such a model computes in float64 and in nothing else.

    Norms, rotary embeddings and routers of transformers cast to float32; here they cast to float64. Casts in any other
    code are left as they are, ours above all: it has to keep float64 by itself.
    """
    with ExitStack() as patches:
        for place, name in ((torch.Tensor, "to"), (torch.Tensor, "type"), (torch.nn.functional, "softmax")):
            patches.enter_context(patch.object(place, name, _uncast(getattr(place, name))))
        patches.enter_context(patch.object(torch.Tensor, "float", _uncast(torch.Tensor.float, torch.Tensor.double)))
        yield


def _uncast(function: Callable[..., Any], instead: Callable[..., Any] | None = None) -> Callable[..., Any]:
    def wider(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1).f_globals["__name__"].startswith("transformers."):
            return (instead or function)(*map(wider, args), **{name: wider(value) for name, value in kwargs.items()})
        return function(*args, **kwargs)

    return called
