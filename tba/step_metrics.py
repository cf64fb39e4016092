"""The numbers that describe one training step, however its groups were split into passes.

Staleness is the age of a trajectory: optimizer steps between the weights that made it and those that are trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tba.batch import Batch
from tba.objectives import Loss
from tba.types import Group

BUCKETS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))


def step_metrics(
    results: Sequence[tuple[Batch, Loss]], groups: Sequence[Group], staleness_GK: Tensor
) -> dict[str, Any]:
    """Averages over the groups of a step, however they were split into passes. Staleness is in the passes' order."""
    weights = [batch.shape[0] / len(groups) for batch, _ in results]
    mean = {
        name: _mean(name, [float(loss.metrics[name]) for _, loss in results], weights) for name in results[0][1].metrics
    }
    reward_GK = torch.cat([batch.reward_GK for batch, _ in results])
    advantage_GK = torch.cat([loss.advantage_GK for _, loss in results])
    lengths = [len(t.response) for group in groups for t in group.trajectories]
    # In double precision and by comparison: in single precision, equal rewards have a spread of rounding errors.
    spread_G = reward_GK.double().std(dim=1)
    equal_G = (reward_GK == reward_GK[:, :1]).all(dim=1)
    return {
        "loss": sum(w * float(loss.value.detach()) for w, (_, loss) in zip(weights, results, strict=True)),
        "reward": float(reward_GK.mean()),
        "reward_std": float(spread_G.mean()),
        "frac_reward_zero_std": float(equal_G.float().mean()),
        "advantage_std": float(advantage_GK.std()),
        **mean,
        "tokens": sum(lengths),
        "completions/mean_length": float(np.mean(lengths)),
        "completions/max_length": max(lengths),
        **staleness_metrics(staleness_GK),
        **residuals_by_staleness(advantage_GK, staleness_GK),
    }


def _mean(name: str, values: Sequence[float], weights: Sequence[float]) -> float:
    """Over passes, weighted by their groups; root mean squares are averaged as squares."""
    power = 2 if name.endswith("_rms") else 1
    return float(np.average(np.power(values, power), weights=weights) ** (1 / power))


def staleness_metrics(staleness_GK: Tensor) -> dict[str, Any]:
    values, counts = staleness_GK.flatten().unique(return_counts=True)
    return {
        "staleness/mean": float(staleness_GK.float().mean()),
        "staleness/max": int(staleness_GK.max()),
        "staleness/counts": {str(int(v)): int(c) for v, c in zip(values, counts, strict=True)},
    }


def residuals_by_staleness(advantage_GK: Tensor, staleness_GK: Tensor) -> dict[str, float]:
    """Root mean square of β × residual by age: old data whose residual stays large is data the policy cannot fit."""
    found = {}
    for low, high in BUCKETS:
        inside = staleness_GK >= low
        if high is not None:
            inside &= staleness_GK <= high
        if inside.any():
            name = f"{low}" if low == high else f"{low}-{high}" if high is not None else f"{low}+"
            found[f"residual/staleness_{name}"] = float(advantage_GK[inside].square().mean().sqrt())
    return found
