"""Some other processor: torch's sums and products as they are, but rounded otherwise.

Kernels differ in the order of their additions, between processors and between the shapes of a batch. Which kernels a
machine has to choose from depends on its vendor; this stands for all those it has not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_SUMS = {_aten.mm, _aten.bmm, _aten.addmm, _aten.baddbmm, _aten.mv, _aten.dot, _aten.sum, _aten.mean, _aten.cumsum}
_FUNCTIONS = {_aten._softmax, _aten.exp, _aten.log, _aten.rsqrt, _aten.tanh, _aten.sigmoid, _aten.silu, _aten.pow}
_LOGARITHMS_OF_SUMS = {_aten._log_softmax, _aten.logsumexp}


class OtherRounding(TorchDispatchMode):
    """Moves every result by up to half a unit in the last place of its largest intermediate number.

    By how much depends on the seed, the result, its place and the number of results, and on nothing else: the same call
    gives the same bits again, a larger batch may give others.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        operation = func.overloadpacket
        if operation is _aten._scaled_dot_product_flash_attention_for_cpu and _plain(out[0]):
            return (self._moved(out[0], 4 * out[0].abs().amax()), *out[1:])
        inputs = [x for x in args if isinstance(x, Tensor)]
        if "out" in kwargs or not all(map(_plain, [out, *inputs])) or all(map(_whole, inputs)):
            return out
        if operation in _SUMS:
            return self._moved(out, operation(*[x.abs() if isinstance(x, Tensor) else x for x in args], **kwargs))
        if operation in _FUNCTIONS:
            return self._moved(out, out.abs())
        if operation in _LOGARITHMS_OF_SUMS:
            return self._moved(out, out.abs() + args[0].abs().amax())
        return out

    def _moved(self, out: Tensor, size: Tensor) -> Tensor:
        bits = out.contiguous().view(torch.int32 if out.dtype == torch.float32 else torch.int64).long()
        place = torch.arange(out.numel()).view(out.shape)
        mixed = bits * 6364136223846793005 + (place * 2654435761 + out.numel() * 97 + self._seed * 7919) * 0x5851F42D
        mixed = (mixed ^ (mixed >> 29)) * 0x2545F4914F6CDD1D
        share = ((mixed >> 20) & 0xFFFFF).to(out.dtype) / 2**19 - 1  # of -1 to 1
        moved = out + torch.finfo(out.dtype).eps / 2 * share * size
        # What comes out whole, a probability of 1 for instance, is exact.
        return torch.where(torch.isfinite(moved) & (out != out.round()), moved, out)


def _whole(value: Tensor) -> bool:
    """Whole numbers are added exactly by any processor."""
    return bool((value == value.round()).all())


def _plain(value: Any) -> bool:
    """A tensor of numbers in memory, float32 or float64; coarser ones are rounded too coarsely for this."""
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.float32, torch.float64)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.numel() > 0
    )
