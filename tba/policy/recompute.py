"""What a training pass keeps of a decoder's layers for the backward pass: what is dear. The rest is computed again.

Left alone, autograd keeps all that any derivative reads. In a layer of a language model most of that is cheap: scaled
and squared inputs of norms, rotated and gathered queries and keys, products of gates. Here a layer keeps its input and
the outputs of its large matrix products and of attention. On the way back its forward runs once more, in which those
operations return what was kept, so that only cheap ones compute. The same operations see the same numbers: every
gradient is the same, bit for bit.

torch's own selective checkpointing does this too, but refuses layers that change a kept tensor in place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

WORTH_THE_CALLS = 2 * 10**9
"""Tokens of a pass times parameters of a layer from which on the memory is worth the time.

Watching a layer's operations and running it again takes about 6 milliseconds of Python, however small the layer is. A
pass of this size takes a CPU core about 200 milliseconds a layer. What a smaller pass keeps is small as well: with
SmolLM2 such a pass has at most 560 tokens.
"""
DEAR_TERMS = 128
"""Terms in each sum of a matrix product from which on its output is kept. Adapters of a low rank have fewer."""

LAYERS_A_TRIM = 4
"""After so many layers the allocator gives freed memory back to the system. It would hold the gaps between kept
tensors, which take half as much memory as these. Asking after every layer would cost time."""

_PRODUCTS: dict[Any, int] = {
    torch.ops.aten.mm.default: 0,
    torch.ops.aten.bmm.default: 0,
    torch.ops.aten.addmm.default: 1,
    torch.ops.aten.baddbmm.default: 1,
    torch.ops.aten._grouped_mm.default: 0,
}
"""Matrix products, and which of their arguments is the left factor."""
_ATTENTION = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)


@contextmanager
def recomputing(model: PreTrainedModel, num_tokens: int) -> Iterator[None]:
    """While this lasts, a forward pass of so many tokens keeps of each layer only what is dear.

    Nothing changes for passes without gradients, small passes, models whose layers transformers cannot checkpoint, and
    models with gradient checkpointing, which keep less.
    """
    layers = _layers(model) if torch.is_grad_enabled() and not model.is_gradient_checkpointing else []
    if not layers or num_tokens * _num_parameters(layers) < WORTH_THE_CALLS * len(layers):
        yield
        return
    # `forward` and not the call, whose hooks (those of `fully_shard`) must run once.
    for number, layer in enumerate(reversed(layers)):
        gives_back = model.device.type == "cpu" and number % LAYERS_A_TRIM == 0
        layer.forward = partial(_run, layer, layer.forward, give_back_memory if gives_back else _do_nothing)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _layers(model: PreTrainedModel) -> list[nn.Module]:
    """The outermost ones that transformers can checkpoint."""
    found: list[nn.Module] = []
    inner: set[nn.Module] = set()
    for module in model.modules():  # parents before their children
        if isinstance(module, GradientCheckpointingLayer) and module not in inner:
            found.append(module)
            inner.update(module.modules())
    return found


def _num_parameters(layers: list[nn.Module]) -> int:
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def _run(layer: nn.Module, forward: Callable[..., Any], at_end: Callable[[], None], *args: Any, **kwargs: Any) -> Any:
    kept = _Kept(layer)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return _watching(kept.compute, kept.end, at_end), _watching(kept.repeat, kept.end_repetition, at_end)

    output = checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=contexts, **kwargs)
    kept.forget(output)  # whoever gets it may change it in place
    return output


@contextmanager
def _watching(run: Callable[..., Any], *at_end: Callable[[], None]) -> Iterator[None]:
    try:
        with _Operations(run):
            yield
    finally:  # the repetition ends with an exception, as soon as it has all that derivatives read
        for finish in at_end:
            finish()


class _Operations(TorchDispatchMode):
    """Has another function run all operations."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._run = run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._run(func, args, kwargs or {})


def _is_dear(operation: Any, arguments: tuple[Any, ...]) -> bool:
    place = _PRODUCTS.get(operation)
    if place is None:
        return operation in _ATTENTION
    return bool(arguments[place].shape[-1] >= DEAR_TERMS)


_num_unread: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many dear operations a layer ends with whose outputs its derivatives do not read, where that is known. Usually it
is one: the last product is added to the residual stream."""


class _Kept:
    """The outputs of a layer's dear operations, in the order of their calls, but for those that nobody reads."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = layer
        self._outputs: list[Any] = []
        self._num_computed = 0
        self._num_repeated = 0

    def compute(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        output = operation(*args, **kwargs)
        for place in _written(operation):
            self.forget(kwargs.get(place) if isinstance(place, str) else args[place])
        if _is_dear(operation, args):
            self._outputs.append(output)
        return output

    def forget(self, changed: Any) -> None:
        """What was changed in place, be it through a view, is no longer what the operation returned."""
        places = {tensor.untyped_storage().data_ptr() for tensor in _tensors(changed)}
        for number, output in enumerate(self._outputs):
            if any(tensor.untyped_storage().data_ptr() in places for tensor in _tensors(output)):
                self._outputs[number] = None

    def end(self) -> None:
        self._num_computed = len(self._outputs)
        num_read = self._num_computed - _num_unread.get(self._layer, 1)
        # By now they are part of the graph. What is kept must not keep the graph.
        self._outputs = [_without_graph(output) for output in self._outputs[:num_read]]

    def repeat(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What was kept, once. All else is computed again."""
        if _is_dear(operation, args):
            number, self._num_repeated = self._num_repeated, self._num_repeated + 1
            if number < len(self._outputs) and self._outputs[number] is not None:
                output, self._outputs[number] = self._outputs[number], None
                return output
        return operation(*args, **kwargs)

    def end_repetition(self) -> None:
        _num_unread[self._layer] = self._num_computed - self._num_repeated
        self._outputs.clear()
        self._num_repeated = 0


@cache
def _written(operation: Any) -> tuple[int | str, ...]:
    """The arguments that an operation changes in place: their places, or their names where only these can be given."""
    written = [
        (place, argument)
        for place, argument in enumerate(operation._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tuple(argument.name if argument.kwarg_only else place for place, argument in written)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, tuple | list):
        return [tensor for part in value for tensor in _tensors(part)]
    return [value] if isinstance(value, Tensor) else []


def _without_graph(output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(_without_graph(part) for part in output)
    return output.detach() if isinstance(output, Tensor) else output


def give_back_memory() -> None:
    """What is free, to the system."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


def _do_nothing() -> None:
    pass


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Of the GNU C library; others have none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
