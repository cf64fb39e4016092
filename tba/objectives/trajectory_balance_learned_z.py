"""Trajectory balance with a log Z that is learned beside the policy, as the paper's red-teaming does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective
from tba.objectives.trajectory_balance import BalanceSettings, TrajectoryBalance


class Settings(BalanceSettings):
    """Trajectory balance with a learned log Z: a linear function of the mean of the prompt's last hidden states."""

    kind: Literal["trajectory_balance_learned_z"] = Field("trajectory_balance_learned_z", description=KIND_TEXT)
    log_z_learning_rate: float = Field(1e-3, gt=0)
    """Peak learning rate of a learned log Z; it follows the schedule of `trainer.learning_rate`."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return LearnedLogZ(self, num_steps, hidden_size)


class LearnedLogZ(TrajectoryBalance):
    def __init__(self, settings: Settings, num_steps: int, hidden_size: int) -> None:
        from tba.objectives.log_partition import LogPartition

        super().__init__(settings, num_steps)
        self._log_z = LogPartition(hidden_size)
        self.modules = {"log_z": self._log_z}
        self.modules_learning_rate = settings.log_z_learning_rate

    @property
    def wants_first_look(self) -> bool:  # type: ignore[override]
        return not self._log_z.started

    def first_look(self, passes: Sequence[Evidence]) -> None:
        """Begin at what the first data say, the same however they are split into passes."""
        estimates = [self.balance(evidence, None).values_GK["log_z"] for evidence in passes]
        num_estimates = sum(estimate.numel() for estimate in estimates)
        self._log_z.start_at(sum(float(estimate.sum()) for estimate in estimates) / num_estimates)

    def __call__(self, evidence: Evidence) -> Loss:
        return self.balance(evidence, self._log_z(evidence.prompt_GH))
