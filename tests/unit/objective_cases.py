"""Cases that every objective is tested on."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

BETAS = (0.004, 0.05, 1.0, 3.0)
shapes = st.tuples(st.integers(1, 4), st.integers(2, 7))
seeds = st.integers(0, 2**31)


def random_case(shape: tuple[int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Policy (to be differentiated), reference and reward, in float64 so that laws hold to many digits."""
    generator = torch.Generator().manual_seed(seed)
    policy, reference, reward = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return (5 * policy - 20).requires_grad_(), 5 * reference - 20, reward
