"""Packed layers against the plain ones they replace."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ARCHITECTURES, build
from torch import Tensor, nn

from tba.engines import packed_linear
from tba.engines.packed_linear import PackedLayers, PackedLinear, PackedProduct
from tba.policy import export_weights, import_weights
from tba.types import TbaError


@pytest.fixture(autouse=True)
def _pack_small_layers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "SMALL", 0)


NUM_INPUTS = 96
FLOAT32 = NUM_INPUTS * 7 * 2**-24
"""How far two float32 products may be apart, relative to their size: sums of 96 terms, whose sizes add up to some seven
times that of the result, are off by at most 2⁻²⁴ of these for each term, in whatever order they are made."""


def difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("precision", "error"), [("float32", FLOAT32), ("int8", 3e-2)])
def test_products_are_those_of_the_plain_layer(precision: packed_linear.Precision, error: float, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(NUM_INPUTS, 64, bias=bias)
    product = PackedProduct([plain], precision)
    packed = product.layers[0]
    x = torch.randn(5, 3, NUM_INPUTS)
    with torch.inference_mode():
        expected = plain(x)
        assert difference(packed(x), expected) < error
        assert (difference(packed(x), expected) > 1e-3) == (precision == "int8"), "int8 was really used, and only there"
        product.full_precision = True
        assert difference(packed(x), expected) < FLOAT32


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
@pytest.mark.parametrize("precision", ["float32", "int8"])
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
                assert difference(together[place](given), alone[place](given)) < FLOAT32


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


@pytest.mark.parametrize("precision", ["float32", "int8"])
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
        close = 15 * FLOAT32 if precision == "float32" else 0.2  # there are fifteen products one after the other
        assert difference(after, expected) < close
        assert difference(before, expected) > 3 * close


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(("device", "dtype"), [("meta", torch.float32), ("cpu", torch.bfloat16)])
def test_layers_elsewhere_or_kept_in_bfloat16_stay_plain(
    precision: packed_linear.Precision, device: str, dtype: torch.dtype
) -> None:
    """The kernels are for CPUs. A device that holds no numbers stands for a GPU."""
    model = build(ARCHITECTURES["llama"], shared=False).to(dtype).to(device)
    PackedLayers(model, precision).pack()
    assert not any(isinstance(module, PackedLinear) for module in model.modules())


def test_a_model_without_linear_layers_has_no_int8_copy() -> None:
    model = build(ARCHITECTURES["gpt2 (learned positions, dropout)"], shared=False, seed=0)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, nn.Identity())
    with pytest.raises(TbaError, match=r"engine\.precision"):
        PackedLayers(model, "int8")
