"""Where tensors live. The one border at which arrays become tensors: nothing else makes a tensor from an array."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tba.policy.placement import check_device, definite

CPU = torch.device("cpu")
SomeModule = TypeVar("SomeModule", bound=nn.Module)


def as_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the CPU it shares the array's memory."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def moved(module: SomeModule, device: torch.device) -> SomeModule:
    """The module itself, with all its tensors on that device."""
    move: Any = module.to  # transformers wraps it, and its types do not follow
    move(device)
    return module


def num_gpus() -> int:
    """How many this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_of(name: str, setting: str) -> torch.device:
    """What a setting means by a name such as `auto` or `cuda:1`. TbaError if there is no such device here."""
    check_device(name, setting, num_gpus())
    return torch.device(definite(name, num_gpus()))
