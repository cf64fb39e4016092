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
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

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

_PRODUCTS = {
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
    for layer in layers:
        layer.forward = partial(
            checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False, context_fn=_contexts
        )
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
    if model.device.type == "cpu":
        _return_freed_memory()


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


def _contexts() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """For the forward run of a layer and for its repetition."""
    keep = _Keep()
    return keep, _Reuse(keep)


def _is_dear(operation: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    place = _PRODUCTS.get(operation)
    if place is None:
        return operation in _ATTENTION
    return bool(arguments[place].shape[-1] >= DEAR_TERMS)


class _Keep(TorchDispatchMode):
    """Keeps the outputs of dear operations, in the order of their calls."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Any] = []
        self.versions: list[list[int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if _is_dear(func, args):
            self.outputs.append(output)
            self.versions.append(_versions(output))
        return output

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        # By now they are part of the graph. What is kept must not keep the graph.
        self.outputs = [_without_graph(output) for output in self.outputs]


class _Reuse(TorchDispatchMode):
    """Returns what was kept, once, unless it has been changed in place since: then it is computed again."""

    def __init__(self, keep: _Keep) -> None:
        super().__init__()
        self._keep = keep
        self._calls = 0

    def __enter__(self) -> _Reuse:
        self._calls = 0
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if _is_dear(func, args):
            kept, self._keep.outputs[self._calls] = self._keep.outputs[self._calls], None
            self._calls += 1
            if kept is not None and _versions(kept) == self._keep.versions[self._calls - 1]:
                return kept
        return func(*args, **(kwargs or {}))


def _tensors(output: Any) -> list[Tensor]:
    return [part for part in (output if isinstance(output, tuple) else (output,)) if isinstance(part, Tensor)]


def _versions(output: Any) -> list[int]:
    """How often each of its tensors was changed in place."""
    return [tensor._version for tensor in _tensors(output)]


def _without_graph(output: Any) -> Any:
    if isinstance(output, tuple):
        return tuple(_without_graph(part) for part in output)
    return output.detach() if isinstance(output, Tensor) else output


def _return_freed_memory() -> None:
    """To the system. The allocator would hold the gaps between kept tensors: half as much again as these."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    """Of the GNU C library; others have none."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None)
