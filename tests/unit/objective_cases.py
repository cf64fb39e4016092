"""Cases that every objective is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from tba.objectives import Evidence, StepTotals

BETAS = (0.004, 0.05, 1.0, 3.0)
shapes = st.tuples(st.integers(1, 4), st.integers(2, 7))
seeds = st.integers(0, 2**31)


def random_case(shape: tuple[int, int], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Policy (to be differentiated), reference and reward, in float64 so that laws hold to many digits."""
    generator = torch.Generator().manual_seed(seed)
    policy, reference, reward = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return (5 * policy - 20).requires_grad_(), 5 * reference - 20, reward


def evidence_of(
    policy: Sequence[Sequence[Tensor]],
    behaviour: Sequence[Sequence[Sequence[float]]],
    reference: Sequence[Sequence[Sequence[float]]],
    reward: Sequence[Sequence[float]],
    *,
    age: Sequence[Sequence[int]] | None = None,
    on_policy: bool = True,
    step: int = 1,
    num_groups: int | None = None,
) -> Evidence:
    """Evidence of G groups of K trajectories, each with a row of log-probabilities by token, in float64.

    `num_groups` of the same size are in the whole step, of which these may be a part.
    """
    tokens = [row for group in policy for row in group]
    lengths = [len(row) for row in tokens]
    G, K = len(policy), len(policy[0])
    step_groups = num_groups or G

    def flat(values: Sequence[Sequence[Sequence[float]]]) -> Tensor:
        return torch.tensor([x for group in values for row in group for x in row], dtype=torch.float64)

    return Evidence(
        policy_J=torch.cat(tokens),
        behaviour_J=flat(behaviour),
        reference_J=flat(reference),
        trajectory_J=torch.arange(G * K).repeat_interleave(torch.tensor(lengths)),
        position_J=torch.cat([torch.arange(length) for length in lengths]),
        reward_GK=torch.tensor(reward, dtype=torch.float64),
        age_GK=torch.zeros(G, K, dtype=torch.long) if age is None else torch.tensor(age),
        length_GK=torch.tensor(lengths).view(G, K),
        on_policy_GK=torch.full((G, K), on_policy),
        prompt_GH=torch.ones(G, 4, dtype=torch.float64),
        step=step,
        totals=StepTotals(step_groups, step_groups * K, step_groups * sum(lengths) // G),
    )


def random_evidence(
    seed: int, shape: tuple[int, int] = (2, 4), *, drift: float = 0.1, longest: int = 12, oldest: int = 3, **others: Any
) -> tuple[Evidence, Tensor]:
    """Trajectories of random lengths and ages whose policy is some nats per token from their sampler, and the leaf that
    all log-probabilities of the policy are made of. Those of age 0 differ from it by rounding."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, shape)
    age = rng.integers(0, oldest + 1, shape)
    leaf = torch.tensor(-2 * rng.random(int(lengths.sum())), dtype=torch.float64).requires_grad_()
    rows = iter(leaf.split(lengths.flatten().tolist()))
    policy = [[next(rows) for _ in range(shape[1])] for _ in range(shape[0])]

    def near(row: Tensor, by: float) -> list[float]:
        return (row.detach().numpy() + by * rng.standard_normal(len(row))).tolist()

    behaviour = [
        [near(row, drift if steps else 1e-7) for row, steps in zip(group, ages, strict=True)]
        for group, ages in zip(policy, age, strict=True)
    ]
    reference = [[near(row, 0.2) for row in group] for group in policy]
    evidence = evidence_of(policy, behaviour, reference, rng.random(shape).tolist(), age=age.tolist(), **others)
    return evidence, leaf
