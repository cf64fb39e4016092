"""RLOO, GRPO and Dr. GRPO: numbers worked out by hand for two groups of two and three short responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from objective_cases import evidence_of, random_evidence, seeds
from torch import Tensor
from torch.testing import assert_close

from tba.objectives import Evidence, Loss
from tba.objectives.dr_grpo import Settings as DrGrpo
from tba.objectives.grpo import Settings as Grpo
from tba.objectives.rloo import Settings as Rloo
from tba.objectives.trajectory_balance import Settings as VarGrad

LOG2 = math.log(2)


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def evidence(policy: Sequence[Sequence[Sequence[float]]], *rest: Any, **others: Any) -> tuple[Evidence, Tensor]:
    lengths = [len(row) for group in policy for row in group]
    leaf = torch.tensor([x for group in policy for row in group for x in row], dtype=torch.float64).requires_grad_()
    rows = iter(leaf.split(lengths))
    return evidence_of([[next(rows) for _ in group] for group in policy], *rest, **others), leaf


def two_of_two() -> tuple[Evidence, Tensor]:
    """Two groups of two. Ratios by token: 2, 1 | 1/2 || 1 | 4, 1/4."""
    return evidence(
        [[logs(0.5, 0.5), logs(0.25)], [logs(0.5), logs(0.8, 0.1)]],
        [[logs(0.25, 0.5), logs(0.5)], [logs(0.5), logs(0.2, 0.4)]],
        [[logs(0.5, 0.5), logs(0.5)], [logs(0.5), logs(0.8, 0.1)]],
        [[1.0, 0.0], [1.0, 0.0]],
        age=[[1, 1], [2, 2]],
    )


def made(settings: Any, given_evidence: Evidence, leaf: Tensor) -> tuple[Loss, Tensor]:
    loss = settings.build(num_steps=1, hidden_size=1)(given_evidence)
    return loss, torch.autograd.grad(loss.value, leaf)[0]


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------------------------------------------------------------
# By token
# ---------------------------------------------------------------------------------------------------------------------


def test_dr_grpo_by_hand() -> None:
    """A = ±1/2. Kept by the clip: ratio 1 up, 1/2 clipped at 0.8 down, 4 down (the worse one counts), 1/4 clipped."""
    loss, found = made(DrGrpo(constant_length=10), *two_of_two())
    assert loss.advantage_GK.tolist() == [[0.5, -0.5], [0.5, -0.5]]
    gains = [1.2 * 0.5, 1.0 * 0.5, -0.8 * 0.5, 1.0 * 0.5, -4.0 * 0.5, -0.8 * 0.5]
    assert_close(loss.value, numbers(-sum(gains) / 40)[0])
    assert_close(found, -numbers(0.0, 0.5, 0.0, 0.5, -2.0, 0.0) / 40)
    assert loss.values_GK["clipped_fraction"].tolist() == [[0.5, 1.0], [0.0, 0.5]]


def test_grpo_by_hand() -> None:
    """Rewards 1 and 0 have a deviation of √½; each response is a mean over its own tokens."""
    size = 0.5 / (math.sqrt(0.5) + 1e-4)
    loss, found = made(Grpo(), *two_of_two())
    assert_close(loss.advantage_GK, size * torch.tensor([[1, -1], [1, -1]], dtype=torch.float64))
    means = [(1.2 + 1.0) / 2, -0.8, 1.0, -(4.0 + 0.8) / 2]
    assert_close(loss.value, numbers(-size * sum(means) / 4)[0])
    assert_close(found, -size * numbers(0.0, 1 / 2, 0.0, 1.0, -4 / 2, 0.0) / 4)


def test_clipping_higher_lets_right_answers_rise_further() -> None:
    _, found = made(DrGrpo(constant_length=1, clip_high=1.5), *two_of_two())
    assert_close(found[:2], -numbers(2 * 0.5, 0.5) / 4)


def test_truncated_ratios_weigh_and_never_stop() -> None:
    loss, found = made(DrGrpo(constant_length=1, ratio="truncate", ratio_cap=1.5), *two_of_two())
    assert_close(found, -0.5 * numbers(1.5, 1.0, -0.5, 1.0, -1.5, -0.25) / 4)
    assert loss.values_GK["clipped_fraction"].tolist() == [[0.5, 0.0], [0.0, 0.5]]


def test_without_a_ratio_stale_data_count_as_fresh() -> None:
    loss, found = made(DrGrpo(constant_length=1, ratio="none"), *two_of_two())
    assert_close(found, -0.5 * numbers(1, 1, -1, 1, -1, -1) / 4)
    assert not loss.values_GK["clipped_fraction"].any()


def test_the_penalty_is_k3_by_token() -> None:
    """Of the third token alone the reference thinks differently: 1/2 for 1/4, so k3 = 2 − log 2 − 1."""
    plain, without = made(DrGrpo(constant_length=10), *two_of_two())
    loss, found = made(DrGrpo(constant_length=10, kl_weight=0.3), *two_of_two())
    assert_close(loss.value - plain.value, numbers(0.3 * (1 - LOG2) / 40)[0])
    assert_close(found - without, numbers(0, 0, 0.3 * (1 - 2) / 40, 0, 0, 0))


# ---------------------------------------------------------------------------------------------------------------------
# By response
# ---------------------------------------------------------------------------------------------------------------------


def three() -> tuple[Evidence, Tensor]:
    """One group of three. Ratios of whole responses: 1, 1/2, 4; log μ − log π_ref: log 2, 0, −log 2."""
    return evidence(
        [[logs(0.5, 0.5), logs(0.25), logs(0.8, 0.5)]],
        [[logs(0.5, 0.5), logs(0.5), logs(0.2, 0.5)]],
        [[logs(0.5, 0.25), logs(0.5), logs(0.4, 0.5)]],
        [[1.0, 0.0, 0.5]],
        age=[[0, 1, 2]],
    )


def test_rloo_by_hand() -> None:
    returns = [1.0 - 0.1 * LOG2, 0.0, 0.5 + 0.1 * LOG2]
    advantages = numbers(*(mine - (sum(returns) - mine) / 2 for mine in returns))
    loss, found = made(Rloo(beta=0.1), *three())
    assert_close(loss.advantage_GK[0], advantages)
    assert_close(found, -advantages[torch.tensor([0, 0, 1, 2, 2])] / 3)
    assert_close(loss.value, -advantages.sum() / 3)


@pytest.mark.parametrize(
    ("given_settings", "weights"),
    [
        ({"ratio": "truncate", "ratio_cap": 2.0}, [1.0, 0.5, 2.0]),
        ({"ratio": "clip"}, [1.0, 0.0, 0.0]),
        ({"ratio": "clip", "clip_low": 0.6, "clip_high": 4.0}, [1.0, 0.5, 4.0]),
    ],
    ids=str,
)
def test_ratios_of_whole_responses(given_settings: dict[str, Any], weights: list[float]) -> None:
    """The second has a negative advantage, the third a small positive one."""
    loss, found = made(Rloo(beta=0.1, **given_settings), *three())
    pushed = numbers(*weights) * loss.advantage_GK[0]
    assert loss.advantage_GK[0, 1] < 0 < loss.advantage_GK[0, 2]
    assert_close(found, -pushed[torch.tensor([0, 0, 1, 2, 2])] / 3)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_on_fresh_data_rloo_is_trajectory_balance_times_a_constant(seed: int) -> None:
    given_evidence, leaf = random_evidence(seed, (2, 5), drift=0.0)
    given_evidence.behaviour_J.copy_(leaf.detach())
    plain, balanced = made(VarGrad(beta=0.2), given_evidence, leaf)
    for ratio in ("none", "truncate"):
        loss, found = made(Rloo.model_validate({"beta": 0.2, "ratio": ratio}), given_evidence, leaf)
        assert_close(loss.advantage_GK, 5 / 4 * plain.advantage_GK, rtol=1e-9, atol=1e-10)
        assert_close(found, 5 / 4 * balanced, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", [Rloo, Grpo, DrGrpo])
@pytest.mark.parametrize("name", ["clip_low", "clip_high", "ratio_cap"])
def test_bounds_of_ratios_are_checked(kind: Any, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        kind.model_validate({name: -0.5})
