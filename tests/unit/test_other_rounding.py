from __future__ import annotations

import pytest
import torch
from other_rounding import OtherRounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_are_rounded_otherwise_and_no_worse(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator, dtype=dtype) for _ in range(2))
    plain = a @ b
    with OtherRounding(1):
        first, again, fewer = a @ b, a @ b, a[:32] @ b
    with OtherRounding(2):
        other = a @ b
    assert torch.equal(first, again), "as deterministic as a kernel"
    assert not torch.equal(first, plain)
    assert not torch.equal(first, other)
    assert not torch.equal(first[:32], fewer), "the shape of a batch chooses the kernel"
    assert ((first - plain).abs() <= torch.finfo(dtype).eps * (a.abs() @ b.abs())).all()


def test_whole_numbers_are_added_exactly() -> None:
    numbers = torch.arange(1000.0)
    with OtherRounding(1):
        assert numbers.sum() == 499_500
        assert numbers.mean() == 499.5
