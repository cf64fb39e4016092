"""What a training pass keeps for the backward pass: less, and the same gradients bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from float64 import in_float64, to_float64
from tiny_models import ARCHITECTURES, PECULIAR, REPEATING, VOCABULARY, WINDOWED, answered, build
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, Olmo2Config, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from benchmarks import memory
from tba.build.learner import _checkpoint_layers
from tba.policy import recompute
from tba.policy.batch import PackedTokens, pack
from tba.policy.lora import add_adapters
from tba.policy.policy import Policy

LENGTHS = [(5, [3, 8, 1]), (2, [6, 6])]
ALWAYS, NEVER = 0, 10**30
DEAR_TERMS = recompute.DEAR_TERMS
OTHERS = {**WINDOWED, **PECULIAR, "diffllama (attends twice)": REPEATING}
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
SMOLLM2 = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=576 // 4,
    intermediate_size=1536 // 4,
    num_hidden_layers=3,
    num_attention_heads=9,
    num_key_value_heads=3,
)
"""Its proportions; its products have more terms than `recompute.DEAR_TERMS`."""


def passes(monkeypatch: pytest.MonkeyPatch, from_size: int, dear_terms: int = 1) -> None:
    """Passes from this size on recompute, and keep products of so many terms."""
    monkeypatch.setattr(recompute, "WORTH_THE_CALLS", from_size)
    monkeypatch.setattr(recompute, "DEAR_TERMS", dear_terms)


def gradients(model: PreTrainedModel, packed: PackedTokens, **settings: Any) -> dict[str, Tensor]:
    model.zero_grad()
    tokens_T = Policy(model, temperature=0.7, chunk_tokens=3, **settings)(packed).tokens_T
    (tokens_T * torch.linspace(-1, 1, len(tokens_T))).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {**found, "log-probabilities": tokens_T.detach()}


@pytest.mark.parametrize("dear_terms", [1, 10**9], ids=["products kept", "products computed again"])
@pytest.mark.parametrize(
    ("name", "shared"),
    [*((name, shared) for name in ARCHITECTURES for shared in (True, False)), *((name, False) for name in OTHERS)],
)
@in_float64()
def test_every_gradient_is_the_same(monkeypatch: pytest.MonkeyPatch, name: str, shared: bool, dear_terms: int) -> None:
    """Over two passes: the second one knows what the layers read."""
    model = to_float64(build({**ARCHITECTURES, **OTHERS}[name], shared=shared))
    packed = pack(answered(LENGTHS))
    passes(monkeypatch, NEVER)
    expected = gradients(model, packed)
    passes(monkeypatch, ALWAYS, dear_terms)
    with counted_layers(model) as calls:
        for number in (1, 2):
            assert_close(gradients(model, packed), expected, rtol=0, atol=0)
            assert len(calls) == 2 * number * model.config.num_hidden_layers, "each layer runs forward, and once more"


@pytest.mark.parametrize("shared", [True, False])
def test_every_gradient_is_the_same_in_bfloat16(monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    model = build(SMOLLM2, shared=shared)
    packed = pack(answered(LENGTHS))
    passes(monkeypatch, NEVER)
    expected = gradients(model, packed, bf16=True)
    passes(monkeypatch, ALWAYS)
    assert_close(gradients(model, packed, bf16=True), expected, rtol=0, atol=0)


def test_outputs_of_adapters_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as large as those of the layers they change, and cheap."""
    pytest.importorskip("peft")
    packed = pack(answered(LENGTHS))
    model = build(SMOLLM2, shared=True)
    add_adapters(model, rank=2, alpha=4.0, targets=["all-linear"], seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # else no gradient reaches A
            nn.init.normal_(parameter, std=0.1)
    passes(monkeypatch, NEVER)
    everything, expected = kept_bytes(model, packed), gradients(model, packed)
    passes(monkeypatch, ALWAYS)
    with_adapters = kept_bytes(model, packed)
    passes(monkeypatch, ALWAYS, DEAR_TERMS)
    assert kept_bytes(model, packed) < 0.6 * everything
    assert kept_bytes(model, packed) < 0.7 * with_adapters
    assert_close(gradients(model, packed), expected, rtol=0, atol=0)


def test_half_the_memory_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(answered([(100, [64] * 16)]))
    model = build(SMOLLM2, shared=True)
    passes(monkeypatch, NEVER)
    everything = kept_bytes(model, packed)
    passes(monkeypatch, ALWAYS, DEAR_TERMS)
    assert kept_bytes(model, packed) < 0.5 * everything


@pytest.mark.parametrize("kind", [LlamaConfig, Olmo2Config])
def test_no_large_product_is_computed_again(monkeypatch: pytest.MonkeyPatch, kind: type[PreTrainedConfig]) -> None:
    """Also where the last one is read: layers of Olmo2 end with a norm."""
    model = build(kind(**{name: getattr(SMOLLM2, name) for name in _SIZES}), shared=True)
    packed = pack(answered(LENGTHS))

    def num_products() -> int:
        return counted(PRODUCTS, lambda: gradients(model, packed))

    passes(monkeypatch, NEVER)
    expected = num_products()
    passes(monkeypatch, ALWAYS)
    gradients(model, packed)
    assert num_products() == expected


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)


def test_what_is_changed_in_place_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, packed = build(SMOLLM2, shared=True), pack(answered(LENGTHS))
    for layer in model.get_decoder().layers:
        for projection in (layer.self_attn.o_proj, layer.mlp.up_proj):
            projection.register_forward_hook(lambda module, inputs, output: output.mul_(1.5))
    passes(monkeypatch, NEVER)
    expected = gradients(model, packed)
    passes(monkeypatch, ALWAYS)
    assert_close(gradients(model, packed), expected, rtol=0, atol=0)


def test_what_is_changed_after_its_layer_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer(GradientCheckpointingLayer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            product = self.linear(x)
            return product, (2 * product).sin()

    class Model(nn.Module):
        is_gradient_checkpointing = False
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

    model: Any = Model().double()
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)

    def gradient() -> Tensor:
        model.zero_grad()
        with recompute.recomputing(model, 3):
            product, wave = model.layer(x)
        (product.mul_(3).sum() + wave.sum()).backward()
        found: Tensor = model.layer.linear.weight.grad
        return found

    passes(monkeypatch, NEVER)
    expected = gradient()
    passes(monkeypatch, ALWAYS)
    for _ in range(2):
        assert_close(gradient(), expected, rtol=0, atol=0)


def test_small_passes_and_checkpointed_models_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(answered(LENGTHS))
    model = build(SMOLLM2, shared=True)
    num_layers = model.config.num_hidden_layers
    size = packed.num_tokens * sum(p.numel() for p in model.get_decoder().layers[0].parameters())
    for limit, runs in ((size, 2), (size + 1, 1)):
        passes(monkeypatch, limit)
        with counted_layers(model) as calls:
            gradients(model, packed)
        assert len(calls) == runs * num_layers
    passes(monkeypatch, ALWAYS)
    with counted_layers(model) as calls, torch.no_grad():
        Policy(model)(packed)
    assert len(calls) == num_layers
    everything_again = counted(PRODUCTS, lambda: gradients(_checkpointed(), packed))
    passes(monkeypatch, NEVER)
    assert counted(PRODUCTS, lambda: gradients(_checkpointed(), packed)) == everything_again


def _checkpointed() -> PreTrainedModel:
    model = build(SMOLLM2, shared=True)
    _checkpoint_layers(model)
    return model


def test_layers_are_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pass, and after one that failed."""
    model, packed = build(SMOLLM2, shared=True), pack(answered(LENGTHS))
    passes(monkeypatch, ALWAYS)
    gradients(model, packed)
    with pytest.raises(KeyboardInterrupt), recompute.recomputing(model, 1):
        raise KeyboardInterrupt
    assert not any("forward" in vars(module) for module in model.modules())


@contextmanager
def counted_layers(model: PreTrainedModel) -> Iterator[list[str]]:
    """Runs of the first norm or projection in each layer. Later parts may not run again: a repetition ends early."""
    calls: list[str] = []
    hooks = []
    for layer in recompute._layers(model):
        first = next(module for module in layer.modules() if "Norm" in type(module).__name__)
        hooks.append(first.register_forward_pre_hook(lambda *_: calls.append("")))
    yield calls
    for hook in hooks:
        hook.remove()


def counted(operations: tuple[Any, ...], work: Callable[[], Any]) -> int:
    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.number += func in operations
            return func(*args, **(kwargs or {}))

    with Count() as count:  # type: ignore[no-untyped-call]
        work()
    return count.number


def kept_bytes(model: PreTrainedModel, packed: PackedTokens) -> int:
    """Between a forward pass and its backward pass."""
    return memory.kept_bytes(lambda: Policy(model, chunk_tokens=64)(packed).tokens_T)
