"""Staleness of drawn data: the trainer's version minus the version that made a trajectory. Measured, not assumed."""

from __future__ import annotations

from typing import Any

from torch import Tensor

BUCKETS = ((0, 0), (1, 2), (3, 5), (6, 10), (11, 20), (21, 50), (51, None))


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
