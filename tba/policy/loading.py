"""Models from Hugging Face folders: every weight comes from the files, or the model is refused in one line.

Weights that are not in the files would be random, and different in each process that loads the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils import logging

from tba.types import TbaError, first_line

_UNREADABLE = (
    *(OSError, EOFError, SafetensorError, StrictDataclassError, UnpicklingError),
    # What transformers raises depends on where it first stumbles over a file that is not what it should be.
    *(ValueError, TypeError, KeyError, AttributeError, RuntimeError),
)
_NUM_NAMED = 3

Keys = Callable[[PreTrainedModel, str], bool]
"""Whether a weight of a model, by its name, may be new: made up rather than read."""


def load_weights(
    auto_class: Any,
    source: str,
    what: str,
    *,
    dtype: torch.dtype = torch.float32,
    may_be_new: Keys = lambda model, name: False,
    **options: Any,
) -> PreTrainedModel:
    """A model in evaluation mode, its weights of this type and on the CPU.

    TbaError names weights that the files do not have, or not in its shape. Tied weights and buffers that are not saved
    are no loss: transformers knows them and does not report them.
    """
    with _without_reports():
        model, report = auto_class.from_pretrained(
            source, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    missing = sorted(name for name in report["missing_keys"] if not may_be_new(model, name))
    if missing:
        raise TbaError(
            f"{what} is not a whole {type(model).__name__}: its files lack {_listed(missing)}; "
            "save or download it again, or use a model of that kind"
        )
    unfit = sorted(found for found in report["mismatched_keys"] if not may_be_new(model, found[0]))
    if unfit:
        shapes = [f"{name} is {tuple(held)}, not {tuple(wanted)}" for name, held, wanted in unfit]
        raise TbaError(f"{what} does not fit its own config.json: {_listed(shapes)}; save or download both again")
    loaded: PreTrainedModel = model.eval()
    return loaded


def is_new_head(model: PreTrainedModel, name: str) -> bool:
    """What a classifier puts on top of a model: all outside it, and the pooler, which language models do not have."""
    return not name.startswith(f"{model.base_model_prefix}.") or is_pooler(model, name)


def is_pooler(model: PreTrainedModel, name: str) -> bool:
    return "pooler" in name.split(".")


@contextmanager
def told_in_one_line(what: str, remedy: str = "") -> Iterator[None]:
    """Turn what transformers raises for unreadable files into a TbaError; `remedy` follows the reason."""
    try:
        yield
    except _UNREADABLE as error:
        raise TbaError(f"{what}: {first_line(error)}{remedy}") from error


@contextmanager
def _without_reports() -> Iterator[None]:
    """transformers prints tables of what is missing; here that is either an error of one line or no fault."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - _NUM_NAMED} more" if len(parts) > _NUM_NAMED else ""
    return ", ".join(parts[:_NUM_NAMED]) + more
