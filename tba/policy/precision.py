"""The precision of sums and log-probabilities: float32 at least, whatever the products were computed in."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(tensor: Tensor) -> Tensor:
    """bfloat16 and float16 as float32; float32 and float64 as they are."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
