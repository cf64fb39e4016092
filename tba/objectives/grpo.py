"""GRPO (arXiv 2402.03300) on stale data: a policy gradient by token, with rewards in units of their group's deviation.

The number is that of TRL's GRPOTrainer with `loss_type="grpo"`: the mean over the tokens of each response, then over
the responses, of −min(ρ A, clip(ρ) A) + kl_weight · k3, with ρ = π/μ by token and A = (r − r̄) / (std(r) + 1e-4).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective
from tba.objectives.policy_gradient import TokenSettings, group_advantage, token_policy_gradient


class Settings(TokenSettings):
    """GRPO: rewards in units of their group's standard deviation, and a mean over the tokens of each response."""

    kind: Literal["grpo"] = Field("grpo", description=KIND_TEXT)

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return Grpo(self)


class Grpo(Objective):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Loss:
        advantage_GK = group_advantage(evidence.reward_GK, by_deviation=True)
        return token_policy_gradient(evidence, self._settings, advantage_GK, evidence.length_GK)
