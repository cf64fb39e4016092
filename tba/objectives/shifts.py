"""Numbers that may be added to the advantage so that the policy stays near its data. All of them move the minimiser for
data of an unrelated sampler (docs/objective.md says how far), and are 0 unless a run asks for them. Loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from tba.objectives.base import ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor


class ShiftSettings(ObjectiveSettings):
    """Settings of what is added to the advantage, which every form of trajectory balance has."""

    anchor: float = Field(0.0, ge=0)
    """λ: subtracts λ times the group's mean of log π − log μ from the advantage, where μ is the distribution that
    sampled. It draws a group back to its data as a whole, which trajectory balance does not see by itself. 0 turns it
    off."""
    baseline_shift: float = Field(0.0, ge=0)
    """Lowers the baseline: adds this share of the range of the group's rewards to the advantage. It keeps a policy from
    becoming certain too early. 0 turns it off."""
    proximal: float = Field(0.0, ge=0)
    """c: subtracts c times log π − log μ of the trajectory itself from its advantage, where μ is the distribution that
    sampled. 0 turns it off."""


def shift_of(settings: ShiftSettings, drift_GK: Tensor, reward_GK: Tensor) -> Tensor | None:
    """What to add to the advantage, without a gradient; None if nothing is asked for."""
    if not (settings.anchor or settings.baseline_shift or settings.proximal):
        return None
    drift_GK, reward_GK = drift_GK.detach(), reward_GK.detach()
    range_G1 = reward_GK.amax(dim=1, keepdim=True) - reward_GK.amin(dim=1, keepdim=True)
    mean_G1 = drift_GK.mean(dim=1, keepdim=True)
    return settings.baseline_shift * range_G1 - settings.anchor * mean_G1 - settings.proximal * drift_GK
