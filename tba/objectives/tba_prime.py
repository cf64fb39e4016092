"""TBA' (arXiv 2503.18929, section 4 and appendix C): trajectory balance as a policy gradient by token.

Its gradient is −mean(A · ∇ log π), eq. 7, with A = (r − r̄) − β (κ − κ̄) and κ = Σ clamp(log π − log π_ref, ±10) over the
tokens of a response. This file owns what is its own: where κ̄ comes from, and a ratio π/μ by token that is clamped. The
rest of TBA' are general parts: a reference that is reset, a fixed staleness, a buffer that is not replayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective, ObjectiveSettings
from tba.objectives.policy_gradient import group_advantage

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_LOG_RATIO = 10.0
"""Nats of one token's log π − log π_ref that count at most."""


class Settings(ObjectiveSettings):
    """TBA': trajectory balance as a policy gradient by token, where a group's mean KL may come from its data."""

    kind: Literal["tba_prime"] = Field("tba_prime", description=KIND_TEXT)
    beta: float = Field(0.005, gt=0)
    """Temperature of the target: the optimum is the reference times exp(reward / beta)."""
    kl_mean: Literal["behaviour", "policy"] = "behaviour"
    """Where the mean log-ratio to the reference that a group is compared with comes from. `policy` is the policy of
    today, as in the paper's equation: a shift of all responses of a group is not seen. `behaviour` is the distribution
    that sampled, as in the authors' code: such a shift away from the data is pulled back."""
    ratio_cap: float = Field(0.0, ge=0)
    """Weighs each token by its importance ratio (policy over the distribution that sampled), clamped at this number;
    where the clamp acts, the token has no gradient. The authors' code uses 8. 0 turns the ratio off, as in the paper's
    equation."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return TbaPrime(self)


class TbaPrime(Objective):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Loss:
        settings, policy_J = self._settings, evidence.policy_J
        kappa_GK = _log_ratio(evidence, policy_J.detach())
        source_GK = kappa_GK if settings.kl_mean == "policy" else _log_ratio(evidence, evidence.behaviour_J)
        excess_GK = kappa_GK - source_GK.mean(dim=1, keepdim=True)
        advantage_GK = group_advantage(evidence.reward_GK, by_deviation=False) - settings.beta * excess_GK
        # Zeros with the gradient of log π where there is no ratio: it is then that of −A · log π, and the number is −A.
        behaviour_J = evidence.behaviour_J if settings.ratio_cap else policy_J.detach()
        ratio_J = (policy_J - behaviour_J).to(policy_J.dtype).exp()
        used_J = ratio_J.clamp(max=settings.ratio_cap) if settings.ratio_cap else ratio_J
        value = -(used_J * evidence.per_token(advantage_GK)).sum() / evidence.totals.num_trajectories
        capped_GK = evidence.per_trajectory((used_J < ratio_J).to(policy_J.dtype)) / evidence.length_GK
        log_ratio_GK = evidence.policy_GK.detach() - evidence.reference_GK
        return Loss(value, advantage_GK, {"log_ratio": log_ratio_GK, "clipped_fraction": capped_GK})


def _log_ratio(evidence: Evidence, logprobs_J: Tensor) -> Tensor:
    """κ of each trajectory under these log-probabilities, clamped by token."""
    log_ratio_J = (logprobs_J - evidence.reference_J).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return evidence.per_trajectory(log_ratio_J).to(evidence.policy_J.dtype)
