"""torch's private CPU kernels: the one place that knows whether they are there, and the one switch that turns them off.

None of them is part of torch's public interface, so any release may take them away. Without the blocked layout,
products are those of plain `linear` in the same precision, somewhat slower and otherwise equal. Without the int8 kernel
there is no int8. Set the environment variable `TBA_PLAIN_KERNELS=1` to do without all of them.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tba.types import TbaError

PLAIN_KERNELS = "TBA_PLAIN_KERNELS"
_USUAL_ROWS = 128
"""A hint for the layout: any number of rows can be multiplied by it."""


def has_blocked_layout() -> bool:
    """Whether oneDNN's own layout of a weight, and the product with it, can be had."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and not _switched_off() and _has(torch.ops.mkldnn, *names)


def can_block(weight_OI: Tensor) -> bool:
    on_cpu = weight_OI.device.type == "cpu" and weight_OI.dtype in (torch.float32, torch.bfloat16)
    return on_cpu and has_blocked_layout() and _multiplies_blocked(weight_OI.dtype)


@cache
def _multiplies_blocked(dtype: torch.dtype) -> bool:
    """Whether the kernels take this type on this processor: bfloat16 needs more than AVX2, and only a call tells."""
    try:
        ones = torch.ones(16, 16, dtype=dtype)
        multiply_blocked(ones, blocked(ones), None)
    except RuntimeError:
        return False
    return True


def has_int8() -> bool:
    """Whether FBGEMM's int8 product can be had."""
    there = "fbgemm" in torch.backends.quantized.supported_engines
    return there and not _switched_off() and _has(torch.ops.quantized, "linear_prepack", "linear_dynamic")


def check_int8() -> None:
    if not has_int8():
        why = f"{PLAIN_KERNELS} turns off" if _switched_off() else f"torch {torch.__version__} does not have here"
        raise TbaError(f"engine.precision = 'int8' needs a kernel that {why}: use 'bfloat16' or 'float32'")


def blocked(weight_OI: Tensor) -> Tensor:
    """A weight of float32 or bfloat16 in oneDNN's blocked layout."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI, _USUAL_ROWS)
    return packed


def multiply_blocked(x: Tensor, packed: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product, in the type of both `x` and the weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias_O, "none", [], "")
    return product


def quantised(weight_OI: Tensor) -> Any:
    """A weight in int8 with a scale for each of its outputs, packed for FBGEMM."""
    scale_O = weight_OI.abs().amax(dim=1).clamp_(min=1e-8).double() / 127
    zero_O = torch.zeros(len(scale_O), dtype=torch.long, device=weight_OI.device)
    with warnings.catch_warnings():
        # torch announces that its quantised tensors will leave some day; the kernels have no other way in yet.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
        rounded = torch.quantize_per_channel(weight_OI.detach(), scale_O, zero_O, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, None)


def multiply_quantised(x: Tensor, packed: Any) -> Tensor:
    """The product in float32. The kernel has one scale for all rows of `x`."""
    # True: activations in 7 bits, since with 8 the kernel's 16-bit sums of two products overflow.
    product: Tensor = torch.ops.quantized.linear_dynamic(x, packed, True)
    return product


def _switched_off() -> bool:
    return os.environ.get(PLAIN_KERNELS, "") not in ("", "0")


def _has(namespace: Any, *names: str) -> bool:
    return all(hasattr(namespace, name) for name in names)
