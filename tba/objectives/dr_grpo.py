"""Dr. GRPO (arXiv 2503.20783) on stale data: GRPO without what favours long wrong answers and easy or hard prompts.

The number is that of TRL's GRPOTrainer with `loss_type="dr_grpo"` and `scale_rewards="none"`: the advantage is r − r̄,
and the sum over all tokens is divided by the number of responses times a constant length.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective
from tba.objectives.policy_gradient import TokenSettings, group_advantage, token_policy_gradient


class Settings(TokenSettings):
    """Dr. GRPO: rewards less their group's mean, and a sum over tokens, divided by a constant."""

    kind: Literal["dr_grpo"] = Field("dr_grpo", description=KIND_TEXT)
    constant_length: int = Field(256, ge=1)
    """Number that the sum over the tokens of a response is divided by, whatever its length. The value of
    `engine.max_new_tokens` makes the loss that of TRL. It only scales the gradient, which matters to
    `trainer.max_grad_norm`."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return DrGrpo(self)


class DrGrpo(Objective):
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(self, evidence: Evidence) -> Loss:
        advantage_GK = group_advantage(evidence.reward_GK, by_deviation=False)
        return token_policy_gradient(evidence, self._settings, advantage_GK, self._settings.constant_length)
