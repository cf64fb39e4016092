"""What policy gradients on stale data share: importance ratios, group advantages, the KL penalty. Loads no torch.

The ratio of a token, or of a whole response, is π/μ: the policy's probability over that of the distribution which it
was really drawn from, as the engine recorded it. Staleness and the engine's precision are both in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tba.objectives.base import Evidence, Loss, ObjectiveSettings

if TYPE_CHECKING:
    from torch import Tensor

STD_FLOOR = 1e-4
"""Added to the standard deviation of a group's rewards before they are divided by it, as TRL does."""


class RatioSettings(ObjectiveSettings):
    """Settings of the importance ratio π/μ, which every policy gradient has."""

    ratio: Literal["clip", "truncate", "none"] = "clip"
    """How the importance ratio (policy over the distribution that sampled) enters. `clip` is PPO's: beyond
    `objective.clip_low` and `objective.clip_high` a trajectory is pushed no further. `truncate` weighs the gradient by
    the ratio, at most `objective.ratio_cap`. `none` trains on stale data as if they were fresh."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """The importance ratio is clipped from below at 1 − `objective.clip_low` if `objective.ratio` is `clip`."""
    clip_high: float = Field(0.2, ge=0)
    """The importance ratio is clipped from above at 1 + `objective.clip_high` if `objective.ratio` is `clip`. DAPO's
    "clip higher" is 0.28."""
    ratio_cap: float = Field(2.0, gt=0)
    """The largest weight that a gradient gets if `objective.ratio` is `truncate`."""


class TokenSettings(RatioSettings):
    """Settings of every policy gradient by token."""

    kl_weight: float = Field(0.0, ge=0)
    """Weight of a penalty on the KL divergence from the reference, by token, in the loss (β in the paper of GRPO). 0
    turns it off."""


def token_policy_gradient(
    evidence: Evidence, settings: TokenSettings, advantage_GK: Tensor, divisor_GK: Tensor | int
) -> Loss:
    """The mean over trajectories of the sum over tokens of −gain + kl_weight · k3, divided by `divisor_GK`."""
    policy_J = evidence.policy_J
    behaviour_J = evidence.behaviour_J.to(policy_J.dtype)
    advantage_J = evidence.per_token(advantage_GK)
    loss_J = -gain(policy_J, behaviour_J, advantage_J, settings)
    if settings.kl_weight:
        loss_J = loss_J + settings.kl_weight * kl_penalty(policy_J, evidence.reference_J.to(policy_J.dtype))
    value = (evidence.per_trajectory(loss_J) / divisor_GK).sum() / evidence.totals.num_trajectories
    held_GK = evidence.per_trajectory(is_held(policy_J, behaviour_J, advantage_J, settings)) / evidence.length_GK
    log_ratio_GK = evidence.policy_GK.detach() - evidence.reference_GK
    return Loss(value, advantage_GK, {"log_ratio": log_ratio_GK, "clipped_fraction": held_GK})


def gain(policy: Tensor, behaviour: Tensor, advantage: Tensor, settings: RatioSettings) -> Tensor:
    """What is maximised, for each token or each response. All tensors have one shape; `policy` has the gradient."""
    if settings.ratio == "none":
        return (policy - policy.detach()).exp() * advantage
    ratio = (policy - behaviour).exp()
    if settings.ratio == "truncate":
        return ratio.detach().clamp(max=settings.ratio_cap) * advantage * policy
    clipped = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    return (ratio * advantage).minimum(clipped * advantage)


def is_held(policy: Tensor, behaviour: Tensor, advantage: Tensor, settings: RatioSettings) -> Tensor:
    """1 where the ratio's bound acts: a gradient that is clipped away, or a weight that is cut to the cap."""
    ratio = (policy.detach() - behaviour).exp()
    if settings.ratio == "truncate":
        held = ratio > settings.ratio_cap
    else:
        too_high, too_low = ratio > 1 + settings.clip_high, ratio < 1 - settings.clip_low
        held = (too_high & (advantage > 0)) | (too_low & (advantage < 0))
    return held.to(policy.dtype) if settings.ratio != "none" else policy.detach().new_zeros(policy.shape)


def group_advantage(reward_GK: Tensor, *, by_deviation: bool) -> Tensor:
    """r − r̄ within each group, in units of the group's standard deviation if so asked."""
    centred_GK = reward_GK - reward_GK.mean(dim=1, keepdim=True)
    return centred_GK / (reward_GK.std(dim=1, keepdim=True) + STD_FLOOR) if by_deviation else centred_GK


def kl_penalty(policy: Tensor, reference: Tensor) -> Tensor:
    """Schulman's k3: an estimate of KL(π ‖ π_ref) by token that is never negative."""
    behind = reference - policy
    return behind.exp() - behind - 1
