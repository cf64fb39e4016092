"""REINFORCE leave-one-out (arXiv 2402.14740) on stale data: a policy gradient by response, with the KL in the reward.

The return of a response is r − β (log μ − log π_ref), with the log-probabilities that it was sampled with, and its
advantage is the return less the mean of the others of its group. That is K/(K−1) times the advantage of trajectory
balance while the policy is the one that sampled. On stale data trajectory balance has the policy of today for μ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective
from tba.objectives.policy_gradient import RatioSettings, gain, is_held

if TYPE_CHECKING:
    from torch import Tensor


class Settings(RatioSettings):
    """RLOO: REINFORCE with the mean of the group's other responses as the baseline, and the KL in the reward."""

    kind: Literal["rloo"] = Field("rloo", description=KIND_TEXT)
    beta: float = Field(0.05, ge=0)
    """Weight of the KL divergence from the reference in the reward. On fresh data the optimum is the reference times
    exp(reward / beta). 0 turns it off."""
    ratio: Literal["clip", "truncate", "none"] = "none"
    """How the importance ratio of a whole response (policy over the distribution that sampled) enters. `clip` is PPO's:
    beyond `objective.clip_low` and `objective.clip_high` a trajectory is pushed no further. `truncate` weighs the
    gradient by the ratio, at most `objective.ratio_cap`. `none` trains on stale data as if they were fresh."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return Rloo(self)


def leave_one_out(return_GK: Tensor) -> Tensor:
    """Each return less the mean of the others of its group."""
    K = return_GK.shape[1]
    return (return_GK - return_GK.mean(dim=1, keepdim=True)) * (K / (K - 1))


class Rloo(Objective):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Loss:
        settings, policy_GK = self._settings, evidence.policy_GK
        # Ratios as sums of differences, not as differences of sums: `behaviour_GK` + ρ is the policy to more digits.
        behaviour_GK = policy_GK.detach() - evidence.drift_GK
        sampled_kl_GK = evidence.per_trajectory(evidence.behaviour_J - evidence.reference_J).to(policy_GK.dtype)
        advantage_GK = leave_one_out(evidence.reward_GK - settings.beta * sampled_kl_GK)
        gain_GK = gain(policy_GK, behaviour_GK, advantage_GK, settings)
        value = -gain_GK.sum() / evidence.totals.num_trajectories
        held_GK = is_held(policy_GK, behaviour_GK, advantage_GK, settings)
        log_ratio_GK = policy_GK.detach() - evidence.reference_GK
        return Loss(value, advantage_GK, {"log_ratio": log_ratio_GK, "clipped_fraction": held_GK})
