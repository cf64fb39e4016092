"""Linear layers for inference: weights laid out once per publication for the library's fastest kernels.

oneDNN multiplies by a float32 matrix in its own blocked layout some 10 to 20 % faster than by a plain one; FBGEMM's
int8 kernels, with weights quantised per output channel and activations per row, take about half the time of that.
Trajectory balance accepts data from any sampler, so a Searcher may explore with the int8 copy.

Pretrained models have a few activations a thousand times as large as the rest, most at the first token of a text. With
one scale for a whole call these would leave the others a bit or two: hence a scale for each row, and prompts are read
in full precision (`TransformersEngine`). On SmolLM2-135M-Instruct that takes the divergence from the float32 model from
1.09 nats a token to 0.06.
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from tba.types import TbaError

Precision = Literal["float32", "int8"]

SMALL = 2**18
"""Float32 weights with fewer entries than this stay as they are: the plain kernel is as fast and quicker to call."""


class PackedLinear(nn.Module):
    """Holds the very parameters of the layer it replaces, under the same names, and a packed copy of the weight."""

    def __init__(self, layer: nn.Linear, precision: Precision) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.precision = precision
        self.full_precision = False
        """Multiply by the parameters themselves where the packed copy is coarser."""
        self._packed: Any = None

    @torch.no_grad()
    def pack(self) -> None:
        """Take the weight as it is now."""
        if self.precision == "int8":
            self._packed = _quantised(self.weight)
        elif self.weight.numel() >= SMALL and torch.backends.mkldnn.is_available():
            # The hint is a usual number of rows: any number works.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), 128)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or (self.full_precision and self.precision == "int8"):
            return linear(x, self.weight, self.bias)
        if self.precision == "int8":
            # The kernel has one scale for all rows: each row is brought to size 1 before and back to its own after.
            size = x.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12)
            # True: activations in 7 bits, since with 8 the kernel's 16-bit sums of two products overflow.
            product: Tensor = torch.ops.quantized.linear_dynamic(x / size, self._packed, True).mul_(size)
            if self.bias is not None:
                product += self.bias
        else:
            product = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return product


def _quantised(weight_OI: Tensor) -> Any:
    scale_O = weight_OI.abs().amax(dim=1).clamp_(min=1e-8).double() / 127
    zero_O = torch.zeros(len(scale_O), dtype=torch.long)
    with warnings.catch_warnings():
        # torch announces that its quantised tensors will leave some day; the kernels have no other way in yet.
        warnings.filterwarnings("ignore", message="torch.quantize_per_tensor")
        quantised = torch.quantize_per_channel(weight_OI.detach(), scale_O, zero_O, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(quantised, None)


class PackedLayers:
    """All linear layers of a model, replaced by packed ones."""

    def __init__(self, model: PreTrainedModel, precision: Precision) -> None:
        self._layers: list[PackedLinear] = []
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) is nn.Linear:
                    layer = PackedLinear(child, precision)
                    setattr(parent, name, layer)
                    self._layers.append(layer)
        if precision == "int8" and not self._layers:
            raise TbaError(f"engine.precision = 'int8' finds no linear layers in {type(model).__name__}: use 'float32'")
        for layer in self._layers:
            layer.pack()

    def pack(self) -> None:
        """Take the weights as they are now, after a publication: of trainable ones, since no others are published."""
        for layer in self._layers:
            if layer.weight.requires_grad:
                layer.pack()

    def set_full_precision(self, full_precision: bool) -> None:
        for layer in self._layers:
            layer.full_precision = full_precision
