"""Packed layers against the plain ones they replace."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ARCHITECTURES, build
from torch import Tensor, nn

from tba.engines import kernels, packed_linear
from tba.engines.packed_linear import PackedLayers, PackedLinear, PackedProduct
from tba.policy.policy import export_weights, import_weights
from tba.types import TbaError


@pytest.fixture(autouse=True)
def _pack_small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "SMALL", 0)


NUM_INPUTS = 96
FLOAT32 = NUM_INPUTS * 7 * 2**-24
"""How far two float32 products may be apart, relative to their size: sums of 96 terms, whose sizes add up to some seven
times that of the result, are off by at most 2⁻²⁴ of these for each term, in whatever order they are made."""


BFLOAT16 = 2**-8 + FLOAT32
"""How far a bfloat16 product may be from the exact product of the rounded factors, relative to its size: sums are made
in float32, and the result has eight bits."""


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("precision", "error"), [("float32", FLOAT32), ("bfloat16", 1e-2), ("int8", 3e-2)])
def test_products_are_those_of_the_plain_layer(precision: packed_linear.Precision, error: float, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(NUM_INPUTS, 64, bias=bias)
    product = PackedProduct([plain], precision)
    packed = product.layers[0]
    x = torch.randn(5, 3, NUM_INPUTS)
    with torch.inference_mode():
        expected = plain(x)
        assert difference(packed(x), expected) < error
        assert packed(x).dtype == torch.float32
        coarse = precision != "float32"
        assert (difference(packed(x), expected) > 1e-3) == coarse, "the coarse kernel was really used, and only there"
        product.full_precision = True
        assert difference(packed(x), expected) < FLOAT32


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("small", [0, 10**6], ids=["packed", "plain"])
def test_bfloat16_products_are_exact_but_for_the_rounding_of_factors_and_result(
    small: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "SMALL", small)
    torch.manual_seed(0)
    plain = nn.Linear(NUM_INPUTS, 64, bias=bias)
    packed = PackedProduct([plain], "bfloat16").layers[0]
    x = torch.randn(50, NUM_INPUTS)
    x[0] *= 3000.0  # the range is float32's: a huge row costs nobody anything
    with torch.inference_mode():
        exact = nn.functional.linear(
            x.bfloat16().double(),
            plain.weight.bfloat16().double(),
            plain.bias.bfloat16().double() if bias else None,
        )
        for found_O, exact_O in zip(packed(x).double(), exact, strict=True):
            assert difference(found_O, exact_O) < BFLOAT16


@pytest.mark.parametrize("without", ["switched off", "missing", "not for this processor"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_without_private_kernels_products_are_those_of_plain_ones(
    precision: packed_linear.Precision, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(NUM_INPUTS, 64), nn.Linear(NUM_INPUTS, 32)]
    x = torch.randn(50, NUM_INPUTS)
    packed = PackedProduct(layers, precision)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    assert (packed._packed is not None) == kernels.can_block(layers[0].weight.to(dtype))
    if without == "not for this processor":
        monkeypatch.setattr(kernels, "_multiplies_blocked", kernels._multiplies_blocked.__wrapped__)
        monkeypatch.setattr(kernels, "blocked", refused)
    else:
        take_away_kernels(monkeypatch, without)
    plain = PackedProduct(layers, precision)
    assert plain._packed is None
    with torch.inference_mode():
        for a, b in zip(packed.layers, plain.layers, strict=True):
            # In bfloat16 the same number may be rounded the other way after sums in another order.
            assert difference(a(x), b(x)) < (2 * BFLOAT16 if precision == "bfloat16" else FLOAT32)


@pytest.mark.parametrize(("without", "why"), [("switched off", "TBA_PLAIN_KERNELS"), ("missing", "torch ")])
def test_without_its_kernel_int8_is_refused_in_one_line(
    without: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away_kernels(monkeypatch, without)
    model = build(ARCHITECTURES["llama"], shared=False, seed=0)
    with pytest.raises(TbaError, match=rf"engine\.precision = 'int8' .*{why}.*: use 'bfloat16'") as caught:
        PackedLayers(model, "int8")
    assert "\n" not in str(caught.value)


def refused(weight_OI: torch.Tensor) -> torch.Tensor:
    """As oneDNN refuses bfloat16 on a processor that has AVX2 and no more."""
    raise RuntimeError("mkldnn_reorder_linear_weight: bf16 path needs the cpu support avx512bw")


def take_away_kernels(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    if how == "switched off":
        monkeypatch.setenv(kernels.PLAIN_KERNELS, "1")
    else:
        monkeypatch.setattr(kernels, "_has", lambda namespace, *names: False)
    assert not kernels.has_blocked_layout()
    assert not kernels.has_int8()


def test_a_row_with_a_huge_entry_leaves_the_others_as_exact() -> None:
    """Pretrained models have such rows at the first token of a text."""
    torch.manual_seed(0)
    packed = PackedProduct([nn.Linear(NUM_INPUTS, 64)], "int8").layers[0]
    x = torch.randn(8, NUM_INPUTS)
    with torch.inference_mode():
        alone = packed(x[1:])
        x[0, 0] = 3000.0
        assert difference(packed(x)[1:], alone) < FLOAT32


@pytest.mark.parametrize("small", [0, 10**6], ids=["packed", "plain"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_layers_with_one_input_give_what_each_alone_does(
    precision: packed_linear.Precision, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "SMALL", small)
    torch.manual_seed(0)
    plain = [nn.Linear(NUM_INPUTS, 64), nn.Linear(NUM_INPUTS, 32, bias=False), nn.Linear(NUM_INPUTS, 32)]
    alone = [PackedProduct([layer], precision).layers[0] for layer in plain]
    together = PackedProduct(plain, precision).layers
    x, y = torch.randn(2, 5, NUM_INPUTS)
    with torch.inference_mode():
        # In turn, in another order, and with inputs that differ: whoever is called, with whatever, gets its own.
        for places, inputs in (
            ((0, 1, 2), (x, x, x)),
            ((2, 0, 1), (y, y, y)),
            ((0, 1, 2), (x, y, x)),
            ((1, 1), (x, y)),
        ):
            for place, given in zip(places, inputs, strict=True):
                close = 2 * BFLOAT16 if precision == "bfloat16" else FLOAT32
                assert difference(together[place](given), alone[place](given)) < close


def test_weights_that_change_between_two_layers_of_a_product_count_for_the_second() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(NUM_INPUTS, 64), nn.Linear(NUM_INPUTS, 32)]
    product = PackedProduct(layers, "float32")
    x = torch.randn(5, NUM_INPUTS)
    with torch.inference_mode():
        product.layers[0](x)
    with torch.no_grad():
        layers[1].weight.mul_(2.0)
    product.pack()
    with torch.inference_mode():
        assert difference(product.layers[1](x), layers[1](x)) < FLOAT32


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_a_packed_model_takes_published_weights(precision: packed_linear.Precision) -> None:
    model, other = (build(ARCHITECTURES["llama"], shared=False, seed=seed) for seed in (0, 1))
    names = [name for name, _ in model.named_parameters()]
    layers = PackedLayers(model, precision)
    assert [name for name, _ in model.named_parameters()] == names
    assert any(isinstance(module, PackedLinear) for module in model.modules())
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.inference_mode():
        before = model(input_ids=ids).logits
        import_weights(model, export_weights(other))
        layers.pack()
        after, expected = model(input_ids=ids).logits, other(input_ids=ids).logits
        # There are fifteen products one after the other.
        close = {"float32": 15 * FLOAT32, "bfloat16": 15 * BFLOAT16, "int8": 0.2}[precision]
        assert difference(after, expected) < close
        assert difference(before, expected) > 3 * close


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.float32), ("cpu", torch.bfloat16)])
def test_layers_elsewhere_or_kept_in_bfloat16_stay_plain(
    precision: packed_linear.Precision, device: str, dtype: torch.dtype
) -> None:
    """The kernels are for CPUs. A device that holds no numbers stands for a GPU."""
    model = build(ARCHITECTURES["llama"], shared=False).to(dtype).to(device)
    PackedLayers(model, precision).pack()
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_model_without_linear_layers_has_no_coarser_copy(precision: packed_linear.Precision) -> None:
    model = build(ARCHITECTURES["gpt2 (learned positions, dropout)"], shared=False, seed=0)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, nn.Identity())
    with pytest.raises(TbaError, match=rf"engine\.precision = '{precision}' finds no linear layers"):
        PackedLayers(model, precision)
