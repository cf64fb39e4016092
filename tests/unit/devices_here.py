"""What tests of devices run on: the CPU, and a GPU where torch finds one (`pytest -m gpu` runs these alone)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from tiny_models import FLOAT32

DEVICES: list[Any] = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU on this machine"),
        ],
    ),
]


def elsewhere() -> torch.device:
    """As a context: a tensor that is made in it without a device holds no numbers, and cannot be mixed with others."""
    return torch.device("meta")


def assert_same(found: ArrayLike, expected_on_cpu: ArrayLike, device: str) -> None:
    """To the bit on the CPU, and up to rounding on a GPU, whose kernels add up in another order."""
    if device == "cpu":
        assert np.array_equal(found, expected_on_cpu)
    else:
        np.testing.assert_allclose(found, expected_on_cpu, rtol=1e-3, atol=FLOAT32)
