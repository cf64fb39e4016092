"""The numbers that describe one training step.

Staleness is the age of a trajectory: optimizer steps between the weights that made it and those that are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tba.learn.base import StepResult
from tba.types import Group

BUCKETS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def step_metrics(
    groups: Sequence[Group], age_GK: Ints, result: StepResult, success_reward: float = 0.5
) -> dict[str, Any]:
    """Averages over the groups of a step, given the age of each trajectory and what the Learner says of it. Right is
    what has a reward above `success_reward`."""
    advantage_GK = result.advantage_GK
    reward_GK = np.array([[t.reward for t in group.trajectories] for group in groups])
    lengths = [t.response.num_written for group in groups for t in group.trajectories]
    # By comparison: a sum of equal numbers, divided by their count, need not be that number.
    equal_G = (reward_GK == reward_GK[:, :1]).all(axis=1)
    spread_G = np.where(equal_G, 0.0, [_spread(reward_K) for reward_K in reward_GK])
    return {
        "reward": float(reward_GK.mean()),
        "reward_std": float(spread_G.mean()),
        "frac_reward_zero_std": float(equal_G.mean()),
        "advantage_std": _spread(advantage_GK),
        "tokens": sum(lengths),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": max(lengths),
        "completions/distinct": float(np.mean([_distinct(group) for group in groups])),
        **staleness_metrics(age_GK),
        **residuals_by_staleness(advantage_GK, age_GK),
        **engine_gap(result, age_GK, np.array(lengths).reshape(age_GK.shape)),
        **drift(
            result.log_pi_mu_GK,
            np.array(lengths).reshape(age_GK.shape),
            right=reward_GK > success_reward,
            fresh=age_GK == 0,
        ),
        **({} if result.grad_cosine is None else {"grad_cosine": result.grad_cosine}),
    }


def engine_gap(result: StepResult, age_GK: Ints, length_GK: Ints) -> dict[str, float]:
    """The difference per token between the engine's and the Learner's log-probabilities, where both had the same
    weights: empty if no trajectory is of age 0."""
    fresh = age_GK == 0
    if not fresh.any():
        return {}
    mean = np.average(result.gap_GK[fresh], weights=length_GK[fresh])
    return {"engine_gap/mean": float(mean), "engine_gap/max": float(result.largest_gap_GK[fresh].max())}


def drift(
    log_pi_mu_GK: Floats, length_GK: Ints, *, right: NDArray[np.bool_], fresh: NDArray[np.bool_]
) -> dict[str, float]:
    """How far the policy has moved from what sampled its data: mean log π − log μ of right, of wrong and of fresh
    answers, each left out if there are none, and what share of the trajectories would be left if all were weighted by
    π/μ."""
    means = {"right": right, "wrong": ~right, "age_0": fresh}
    return {
        **{f"log_pi_mu/{name}": float(log_pi_mu_GK[which].mean()) for name, which in means.items() if which.any()},
        "ess": effective_share(log_pi_mu_GK),
        "ess_per_token": effective_share(log_pi_mu_GK / length_GK),
    }


def effective_share(log_weights: Floats) -> float:
    """The effective sample size (Σw)² / Σw² of these weights as a share of their number: 1 if all are equal, 1/n if one
    outweighs the rest. NaN if a weight is not finite."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(log_weights - log_weights.max())
        return float(weights.sum() ** 2 / (weights.size * np.square(weights).sum()))


def _distinct(group: Group) -> float:
    """Different responses among the trajectories of a group, as a share of them."""
    return len({t.response.tokens.tobytes() for t in group.trajectories}) / len(group.trajectories)


def _spread(values: Floats) -> float:
    with np.errstate(invalid="ignore"):  # a reward that is not finite makes this number so, and no warning
        return float(values.std(ddof=1))


def staleness_metrics(age_GK: Ints) -> dict[str, Any]:
    values, counts = np.unique(age_GK, return_counts=True)
    return {
        "staleness/mean": float(age_GK.mean()),
        "staleness/max": int(age_GK.max()),
        "staleness/counts": {str(v): c for v, c in zip(values.tolist(), counts.tolist(), strict=True)},
    }


def residuals_by_staleness(advantage_GK: Floats, age_GK: Ints) -> dict[str, float]:
    """Root mean square of β × residual by age: old data whose residual stays large is data the policy cannot fit."""
    found = {}
    for low, high in BUCKETS:
        inside = age_GK >= low
        if high is not None:
            inside &= age_GK <= high
        if inside.any():
            name = f"{low}" if low == high else f"{low}-{high}" if high is not None else f"{low}+"
            found[f"residual/staleness_{name}"] = float(np.sqrt(np.square(advantage_GK[inside]).mean()))
    return found
