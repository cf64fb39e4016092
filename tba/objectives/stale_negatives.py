"""Weights on stale negatives: wrong answers that the policy has already moved away from since they were sampled.

On fresh data a wrong answer stops being sampled once it is unlikely. A stale one is still pushed down, step after step,
and with shared weights everything near it goes down too: that is how training on stale data collapses. These weights
let go of such an answer. They only ever act where the advantage A is negative and the policy has drifted, so they keep
the minimiser of trajectory balance (docs/objective.md), and they are exactly 1 for data of the current weights.

Drift per token is m = ρ / max(length, FLOOR), with ρ = log π − log μ summed over a response. Loads no torch by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tba.objectives.base import ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

How = Literal["taper", "mask", "keep"]
Length = Literal["mean", "sum"]

THRESHOLD = 0.02
"""Nats per token, unless a run says otherwise."""
FLOOR = 6
"""Tokens that a response counts as at least: one surprising token of a very short response is no drift."""
TOKENS_OF_A_SUM = 20
"""Tokens that every response counts as where drift is a sum: the taper is then min(1, π/μ) at a threshold of 0.05."""


class StaleSettings(ObjectiveSettings):
    """Settings of the weights on stale negatives, which every form of trajectory balance has."""

    before: ClassVar[Mapping[str, Any]] = {"stale_negatives": "keep"}

    stale_negatives: How = "mask"
    """What happens to trajectories with a negative advantage (wrong answers) that the policy has become less likely to
    write since they were sampled. `mask` leaves out those whose drift is below −`objective.stale_threshold`, `taper`
    weighs their gradient by exp(drift / `objective.stale_threshold`), and `keep` trains on them as on all others.
    Drift is the change of the log-probability per token. Trajectories of the current weights always count in full."""
    stale_threshold: float = Field(THRESHOLD, gt=0)
    """Drift, in nats per token, at which a stale negative has lost its weight, or most of it, as
    `objective.stale_negatives` says. With `engine.precision = "int8"` rounding adds to the drift of each response, the
    more the shorter it is, and a larger threshold lets go of fewer for that reason alone."""
    stale_length: Length = "mean"
    """Drift of a whole response: `mean` divides it by the number of tokens, so that a weight does not depend on length,
    and `sum` divides it by 20 tokens for every response, so that long responses lose their weight earlier."""


def drift_since_sampling(log_ratio_GK: Tensor, length_GK: Tensor, age_GK: Tensor, offset: float) -> Tensor:
    """ρ without what was there from the start: `offset` a token. Exactly 0 for trajectories of the current weights, by
    their age and not by their ratio, because two kernels differ by rounding."""
    return (log_ratio_GK - offset * length_GK).masked_fill(age_GK == 0, 0.0)


def drift_per_token(drift_GK: Tensor, length_GK: Tensor, length: Length = "mean", floor: int = FLOOR) -> Tensor:
    """m, by the mean over tokens, of which a response has at least `floor`; or as if each had `TOKENS_OF_A_SUM`."""
    return drift_GK / (TOKENS_OF_A_SUM if length == "sum" else length_GK.clamp(min=floor))


def stale_weights(advantage_GK: Tensor, drift_per_token_GK: Tensor, how: How, threshold: float) -> Tensor:
    """The weight of each trajectory's gradient, from 0 to 1: below 1 only where A < 0 and m < 0. It has no gradient."""
    ones_GK = advantage_GK.detach().new_ones(advantage_GK.shape)
    if how == "keep":
        return ones_GK
    scaled_GK = drift_per_token_GK.detach() / threshold
    weight_GK = scaled_GK.clamp(max=0.0).exp() if how == "taper" else (scaled_GK >= -1).to(ones_GK.dtype)
    return weight_GK.where(advantage_GK < 0, ones_GK)


def removed_by(weight: NDArray[np.float64], advantage: NDArray[np.float64]) -> tuple[float, float]:
    """What the weights of a step take away: the share of Σ|A|, and the share of trajectories that have one below 1."""
    size = np.abs(advantage)
    with np.errstate(invalid="ignore"):  # a reward that is not finite makes this number so, and no warning
        removed = float(((1 - weight) * size).sum() / size.sum()) if size.any() else 0.0
    return removed, float((weight < 1).mean())
