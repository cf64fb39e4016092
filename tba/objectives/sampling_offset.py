"""What log π − log μ is, per token, while both have the same weights: measured, so that drift is drift alone.

An engine that computes in int8 or bfloat16 samples from a slightly other distribution than the Learner trains, so that
ρ is not 0 even for fresh data: on average it is minus the divergence of the two, which can be larger than any threshold
on drift. So does an engine that leaves unlikely tokens out (`engine.top_p`, `top_k`, `min_p`): what is left is likelier
there than in the policy. The running mean over trajectories of age 0 tells how much that is. It counts from the next
step on.

Responses that were sampled at another temperature for exploration are not measured: they would make the mean that of
two populations, and right for neither. Their own ratio has the temperature in it, so that the policy finds them less
likely than their sampler did. As negatives they lose their weight as soon as they are stale, which is right: what the
policy would not write needs no pushing down. As positives, which exploration is for, they keep it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

KEPT = 0.95
"""Share of what was known that is kept by each step with fresh trajectories: the mean is over some twenty steps."""


class SamplingOffset:
    """A running mean. Steps without fresh trajectories leave it as it is."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0.0

    @property
    def per_token(self) -> float:
        """In nats; 0 until something was measured."""
        return self._sum / self._count if self._count else 0.0

    def measure(self, log_ratio_per_token: NDArray[np.float64], is_fresh: NDArray[np.bool_]) -> None:
        """Add the trajectories of one step."""
        found = log_ratio_per_token[is_fresh & np.isfinite(log_ratio_per_token)]
        if found.size:
            self._sum = KEPT * self._sum + float(found.sum())
            self._count = KEPT * self._count + found.size

    def state(self) -> dict[str, float]:
        return {"offset_sum": self._sum, "offset_count": self._count}

    def restore(self, state: Mapping[str, float]) -> None:
        self._sum = state.get("offset_sum", 0.0)
        self._count = state.get("offset_count", 0.0)
