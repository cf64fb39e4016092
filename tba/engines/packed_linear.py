"""Linear layers for inference: weights laid out once per publication for the library's fastest kernels.

oneDNN multiplies by a matrix in its own blocked layout some 10 to 20 % faster than by a plain one. In bfloat16 it takes
about half the time of float32 where the processor has instructions for it; FBGEMM's int8 kernels, with weights
quantised per output channel and activations per row, take as long as that or less. Trajectory balance accepts data from
any sampler, so a Searcher may explore with a coarser copy of the weights. Activations are float32 between the layers.

Pretrained models have a few activations a thousand times as large as the rest, most at the first token of a text. With
one int8 scale for a whole call these would leave the others a bit or two: hence a scale for each row, and with int8
prompts are read in full precision (`TransformersEngine`). On SmolLM2-135M-Instruct that takes the divergence from the
float32 model from 1.09 nats a token to 0.09. bfloat16 has float32's range and needs none of this: log-probabilities of
its tokens are off by 0.024 on average if it reads the prompts too, by 0.023 if it does not, and by 0.28 with int8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from tba.engines import kernels
from tba.types import TbaError

Precision = Literal["float32", "bfloat16", "int8"]

SMALL = 2**18
"""Weights with fewer entries than this stay as they are: the plain kernel is as fast and quicker to call."""


SAME_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that most architectures call with one and the same input."""


class PackedLinear(nn.Module):
    """Holds the very parameters of the layer it replaces, under the same names."""

    def __init__(self, layer: nn.Linear, product: PackedProduct, place: int) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias = layer.bias
        self.product = product
        self._place = place

    def forward(self, x: Tensor) -> Tensor:
        return self.product.part(x, self._place)


class PackedProduct:
    """The product of an input by the weights of some layers, packed as one matrix.

    The layer that is called first computes it for all; the others, given the very same tensor, take their columns. If
    they are given another, they compute theirs: right in any case, fast where the input is shared.
    """

    def __init__(self, layers: Sequence[nn.Linear], precision: Precision) -> None:
        self.layers = [PackedLinear(layer, self, place) for place, layer in enumerate(layers)]
        self.full_precision = False
        """Multiply by the parameters themselves where the packed copy is coarser."""
        self._precision = precision
        self._sizes = [layer.out_features for layer in layers]
        self.pack()

    @torch.no_grad()
    def pack(self) -> None:
        """Take the weights as they are now."""
        self._input: Tensor | None = None
        self._parts: Sequence[Tensor] = ()
        self._weight = _joined([layer.weight for layer in self.layers])
        self._bias = None
        if any(layer.bias is not None for layer in self.layers):
            self._bias = _joined([_bias_or_zeros(layer) for layer in self.layers])
        self._packed: Any = None
        if self._precision == "int8":
            self._packed = kernels.quantised(self._weight)
        else:
            dtype = torch.bfloat16 if self._precision == "bfloat16" else self._weight.dtype
            self._weight = self._weight.to(dtype)
            self._bias = None if self._bias is None else self._bias.to(dtype)
            if self._weight.numel() >= SMALL and kernels.can_block(self._weight):
                self._packed = kernels.blocked(self._weight)
        if self._packed is not None:
            del self._weight

    def part(self, x: Tensor, place: int) -> Tensor:
        # Under autocast plain layers choose the kernel; a packed one would stay float32.
        if self.full_precision and (self._precision != "float32" or torch.is_autocast_enabled("cpu")):
            return linear(x, self.layers[place].weight, self.layers[place].bias)
        if len(self.layers) == 1:
            return self._multiply(x)
        if self._input is not x:
            self._input, self._parts = x, self._multiply(x).split(self._sizes, dim=-1)
        part = self._parts[place]
        if place == len(self.layers) - 1:
            self._input, self._parts = None, ()  # nothing is kept longer than it is needed
        return part

    def _multiply(self, x: Tensor) -> Tensor:
        match self._precision:
            case "int8":
                # The kernel has one scale for all rows: each row is brought to size 1 before and back to its own after.
                size = x.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12)
                product = kernels.multiply_quantised(x / size, self._packed).mul_(size)
                return product if self._bias is None else product.add_(self._bias)
            case "bfloat16":
                return self._multiply_as_it_is(x.to(torch.bfloat16)).to(x.dtype)
            case "float32":
                return self._multiply_as_it_is(x)

    def _multiply_as_it_is(self, x: Tensor) -> Tensor:
        if self._packed is None:
            return linear(x, self._weight, self._bias)
        return kernels.multiply_blocked(x, self._packed, self._bias)


def _bias_or_zeros(layer: PackedLinear) -> Tensor:
    return layer.weight.new_zeros(len(layer.weight)) if layer.bias is None else layer.bias


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].detach() if len(tensors) == 1 else torch.cat([tensor.detach() for tensor in tensors])


@contextmanager
def in_full_precision(model: PreTrainedModel) -> Iterator[None]:
    """Multiply by the parameters themselves for the time of the context, also where the packed copy is coarser."""
    products = {layer.product for layer in model.modules() if isinstance(layer, PackedLinear)}
    before = {product: product.full_precision for product in products}
    try:
        for product in products:
            product.full_precision = True
        yield
    finally:
        for product in products:
            product.full_precision = before[product]


class PackedLayers:
    """All linear layers of a model, replaced by packed ones; on another device than the CPU they stay plain."""

    def __init__(self, model: PreTrainedModel, precision: Precision) -> None:
        if precision == "int8":
            kernels.check_int8()
        self._products: list[PackedProduct] = []
        if model.device.type != "cpu" or model.dtype == torch.bfloat16:
            return  # the kernels are for CPUs, and for weights that are kept in full
        for parent, layers in list(layers_by_input(model)):
            product = PackedProduct(list(layers.values()), precision)
            for name, layer in zip(layers, product.layers, strict=True):
                setattr(parent, name, layer)
            self._products.append(product)
        if precision != "float32" and not self._products:
            raise TbaError(
                f"engine.precision = {precision!r} finds no linear layers in {type(model).__name__}: use 'float32'"
            )

    def pack(self) -> None:
        """Take the weights as they are now, after a publication: of trainable ones, since no others are published."""
        for product in self._products:
            if any(layer.weight.requires_grad for layer in product.layers):
                product.pack()

    def set_full_precision(self, full_precision: bool) -> None:
        for product in self._products:
            product.full_precision = full_precision


def layers_by_input(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str, nn.Linear]]]:
    """A model's linear layers by name, with the module that has them: those that share their input together."""
    for parent in model.modules():
        layers = {name: child for name, child in parent.named_children() if type(child) is nn.Linear}
        for names in _grouped(layers):
            yield parent, {name: layers[name] for name in names}


def _grouped(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Those that share their input together, the others alone."""
    names = set(names)
    together = [group for group in SAME_INPUT if names.issuperset(group)]
    return [*together, *((name,) for name in sorted(names.difference(*together)))]
