"""The numbers of one `train` record, worked out by hand on small groups."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tba.learn.base import StepResult
from tba.learn.step_metrics import BUCKETS, step_metrics
from tba.testing import make_response
from tba.types import Group, Prompt, Trajectory

VERSION = 100


def group(rewards: Sequence[float], ages: Sequence[int]) -> Group:
    """Trajectories with these rewards, made by weights of so many steps ago; their lengths are 1, 2, 3, …"""
    responses = [make_response([5] * (i + 1), version=VERSION - age) for i, age in enumerate(ages)]
    parts = zip(responses, rewards, strict=True)
    return Group(Prompt("p", "", (1, 2)), tuple(Trajectory(r, x, (x,), r.token_logprobs) for r, x in parts))


def record(
    groups: Sequence[Group],
    advantages: Sequence[Sequence[float]],
    gaps: Sequence[Sequence[float]] | None = None,
    log_pi_mu: Sequence[Sequence[float]] | None = None,
    grad_cosine: float | None = None,
    success_reward: float = 0.5,
) -> dict[str, Any]:
    """The largest gap of a trajectory is three times its mean gap."""
    ages = np.array([[VERSION - t.version.step for t in group.trajectories] for group in groups])
    gap_GK = np.zeros(ages.shape) if gaps is None else np.array(gaps)
    result = StepResult(
        loss=0.0,
        grad_norm=0.0,
        learning_rate=0.0,
        updated=True,
        advantage_GK=np.array(advantages, dtype=np.float64),
        gap_GK=gap_GK,
        largest_gap_GK=3 * gap_GK,
        log_pi_mu_GK=np.zeros(ages.shape) if log_pi_mu is None else np.array(log_pi_mu),
        metrics={},
        grad_cosine=grad_cosine,
    )
    return step_metrics(groups, ages, result, success_reward)


def test_staleness_is_counted_for_every_trajectory() -> None:
    found = record([group([0, 1], [0, 3]), group([0, 1], [3, 10])], [[0, 0], [0, 0]])
    assert found["staleness/mean"] == 4.0
    assert found["staleness/max"] == 10
    assert found["staleness/counts"] == {"0": 1, "3": 2, "10": 1}


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("0", [0], [1]),
        ("1-2", [1, 2], [0, 3]),
        ("3-5", [3, 4, 5], [2, 6]),
        ("6-10", [6, 10], [5, 11]),
        ("11-20", [11, 20], [10, 21]),
        ("21-50", [21, 50], [20, 51]),
        ("51+", [51, 99], [50]),
    ],
)
def test_the_residual_of_an_age_is_the_root_mean_square_of_its_advantages(
    name: str, inside: list[int], outside: list[int]
) -> None:
    """3, 4, 5 … inside the bounds of an age, and 100 next to them."""
    within = [3.0 + i for i in range(len(inside))]
    found = record([group([0.0] * len(inside + outside), inside + outside)], [within + [-100.0] * len(outside)])
    wanted = math.sqrt(sum(x * x for x in within) / len(within))
    assert found[f"residual/staleness_{name}"] == pytest.approx(wanted)
    others = {key: value for key, value in found.items() if key.startswith("residual/staleness_") and key[19:] != name}
    assert set(others.values()) == {100.0}, "what is outside is counted elsewhere, and ages without data are left out"
    assert 1 <= len(others) <= 2


def test_the_ages_cover_every_staleness_once() -> None:
    for age in range(200):
        assert sum(low <= age and (high is None or age <= high) for low, high in BUCKETS) == 1


def test_the_spread_of_advantages_is_over_the_whole_step() -> None:
    """1, 2, 3, 6 have mean 3 and squared deviations 4 + 1 + 0 + 9, over n − 1 = 3."""
    found = record([group([0, 1], [0, 0]), group([0, 1], [0, 0])], [[1, 2], [3, 6]])
    assert found["advantage_std"] == pytest.approx(math.sqrt(14 / 3))


def test_rewards_are_averaged_over_all_and_their_spread_over_groups() -> None:
    """The groups 0, 2 and 5, 5 have standard deviations √2 and 0."""
    found = record([group([0, 2], [0, 0]), group([5, 5], [0, 0])], [[0, 0], [0, 0]])
    assert found["reward"] == 3.0
    assert found["reward_std"] == pytest.approx(math.sqrt(2) / 2)
    assert found["frac_reward_zero_std"] == 0.5


@pytest.mark.parametrize("size", [2, 3, 7, 8, 16])
@pytest.mark.parametrize("reward", [0.0, 0.7, 1 / 3, -3.7, 1000.1])
def test_equal_rewards_have_no_spread_whatever_they_are(reward: float, size: int) -> None:
    """A sum of equal numbers in single precision, divided by their count, need not be that number."""
    found = record([group([reward] * size, [0] * size)], [[0.0] * size])
    assert (found["reward_std"], found["frac_reward_zero_std"]) == (0.0, 1.0)


def test_rewards_that_differ_by_very_little_do_differ() -> None:
    assert record([group([0.0, 1e-9], [0, 0])], [[0, 0]])["frac_reward_zero_std"] == 0.0


def test_lengths_are_those_of_the_responses() -> None:
    found = record([group([0, 1, 2], [0, 0, 0]), group([0, 1, 2], [0, 0, 0])], [[0] * 3] * 2)
    assert (found["tokens"], found["completions/mean_length"], found["completions/max_length"]) == (12, 2.0, 3)


def test_the_gap_to_the_engine_is_a_mean_over_the_tokens_of_fresh_trajectories() -> None:
    """Those have 1, 3 and 2 tokens; the gap of the others is their age."""
    groups = [group([0, 1, 2], [0, 7, 0]), group([0, 1, 2], [9, 0, 9])]
    found = record(groups, [[0.0] * 3] * 2, [[0.1, 50.0, 0.3], [50.0, 0.2, 50.0]])
    assert found["engine_gap/mean"] == pytest.approx((1 * 0.1 + 3 * 0.3 + 2 * 0.2) / 6)
    assert found["engine_gap/max"] == pytest.approx(0.9)


def test_without_fresh_trajectories_nothing_is_said_of_the_engine() -> None:
    found = record([group([0, 1], [1, 2])], [[0.0, 0.0]], [[0.1, 0.2]])
    assert not [name for name in found if name.startswith("engine_gap")]


def test_the_drift_is_a_mean_over_right_over_wrong_and_over_fresh_answers() -> None:
    """Rewards 0, 1, 2 and 0, 0, 3; what is above 1.5 is right."""
    groups = [group([0, 1, 2], [0, 5, 5]), group([0, 0, 3], [5, 0, 5])]
    found = record(groups, [[0.0] * 3] * 2, log_pi_mu=[[-1, -2, -4], [-8, -16, -32]], success_reward=1.5)
    assert found["log_pi_mu/right"] == (-4 - 32) / 2
    assert found["log_pi_mu/wrong"] == (-1 - 2 - 8 - 16) / 4
    assert found["log_pi_mu/age_0"] == (-1 - 16) / 2


@pytest.mark.parametrize(("rewards", "there", "missing"), [([1, 1], "right", "wrong"), ([0, 0], "wrong", "right")])
def test_a_mean_over_nothing_is_left_out(rewards: list[float], there: str, missing: str) -> None:
    found = record([group(rewards, [3, 3])], [[0.0, 0.0]])
    assert found[f"log_pi_mu/{there}"] == 0.0
    assert f"log_pi_mu/{missing}" not in found
    assert "log_pi_mu/age_0" not in found


def test_the_effective_sample_size_of_equal_ratios_is_all_of_it_whatever_they_are() -> None:
    found = record([group([0, 1], [0, 0])], [[0.0, 0.0]], log_pi_mu=[[-3000.0, -3000.0]])
    assert found["ess"] == 1.0


def test_the_effective_sample_size_by_hand() -> None:
    """Ratios 1 and 3: (1 + 3)² / (2 · (1 + 9)) = 0.8. Their lengths are 1 and 2, so per token they are 1 and √3."""
    found = record([group([0, 1], [0, 0])], [[0.0, 0.0]], log_pi_mu=[[0.0, math.log(3)]])
    assert found["ess"] == pytest.approx(0.8, abs=1e-12)
    assert found["ess_per_token"] == pytest.approx((1 + math.sqrt(3)) ** 2 / (2 * (1 + 3)), abs=1e-12)


def test_one_ratio_that_outweighs_the_rest_is_a_sample_of_one() -> None:
    found = record([group([0] * 4, [0] * 4)], [[0.0] * 4], log_pi_mu=[[0.0, -900, -900, -900]])
    assert found["ess"] == pytest.approx(1 / 4)


def test_equal_responses_of_a_drawn_group_count_once() -> None:
    """Lengths 1, 2, 3 are all different; a group that is one response thrice has a third."""
    three = group([0, 1, 1], [0, 0, 0])
    same = Group(three.prompt, (three.trajectories[1],) * 3)
    assert record([three, same], [[0.0] * 3] * 2)["completions/distinct"] == pytest.approx((1 + 1 / 3) / 2)


def test_the_cosine_of_the_gradients_is_told_if_it_is_known() -> None:
    assert "grad_cosine" not in record([group([0, 1], [0, 0])], [[0.0, 0.0]])
    assert record([group([0, 1], [0, 0])], [[0.0, 0.0]], grad_cosine=-0.5)["grad_cosine"] == -0.5
