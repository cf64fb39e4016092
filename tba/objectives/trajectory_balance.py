"""Trajectory balance (arXiv 2503.18929, eq. 4, 5 and 7): in its VarGrad form, or with a log Z that is given.

The residual of a trajectory is log Z + log π − log π_ref − r/β. In the VarGrad form log Z is estimated from the K
responses to the same prompt. The loss is β/2 times the mean squared residual: its gradient is then exactly
−mean(A · ∇ log π) with A = r − β (log Z + κ), κ = log π − log π_ref, for every β, which VarGrad makes
(r − r̄) − β (κ − κ̄). On-policy that is REINFORCE with a mean baseline and the KL in the reward; off-policy it keeps
its minimiser, π_ref · exp(r/β) / Z, with no importance ratio. The gradient of a learned log Z is −mean(A).

What is done about stale data acts on the policy's gradient alone, −mean(w · (A + shift) · ∇ log π): the number that the
loss shows, log Z and what it learns from are those of plain trajectory balance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from tba.objectives.base import KIND_TEXT, Evidence, Loss, Objective, StepValues
from tba.objectives.sampling_offset import SamplingOffset
from tba.objectives.shifts import ShiftSettings, shift_of
from tba.objectives.stale_negatives import (
    StaleSettings,
    drift_per_token,
    drift_since_sampling,
    removed_by,
    stale_weights,
)
from tba.objectives.target import TargetSettings

if TYPE_CHECKING:
    from torch import Tensor


def trajectory_balance(
    policy_GK: Tensor,
    reference_GK: Tensor,
    reward_GK: Tensor,
    *,
    beta: float,
    reference_weight: float = 1.0,
    log_z_G1: Tensor | None = None,
    shift_GK: Tensor | None = None,
    weigh: Callable[[Tensor], Tensor] | None = None,
) -> Loss:
    """Sequence log-probabilities and rewards of G groups of K to the loss, the mean over these groups.

    `reference_weight` is the power of the reference in the target π_ref^w · exp(r/β) / Z. `shift_GK` is added to the
    advantage, and `weigh` gives, for the advantage, a weight of each trajectory's gradient; neither has a gradient.
    """
    log_ratio_GK = policy_GK - reference_weight * reference_GK
    if log_z_G1 is None:
        log_z_G1 = (reward_GK / beta - log_ratio_GK).mean(dim=1, keepdim=True).detach()
    # β × residual, written so that small β does not blow numbers up before they cancel.
    scaled_GK = beta * (log_z_G1 + log_ratio_GK) - reward_GK
    advantage_GK = -scaled_GK.detach() if shift_GK is None else shift_GK - scaled_GK.detach()
    weight_GK = advantage_GK.new_ones(advantage_GK.shape) if weigh is None else weigh(advantage_GK)
    # Zeros with the gradient of log π: they change what the policy learns, and neither the number nor log Z.
    to_policy_GK = policy_GK - policy_GK.detach()
    if weigh is not None:
        scaled_GK = scaled_GK + beta * (weight_GK - 1) * to_policy_GK
    value = scaled_GK.square().mean() / (2 * beta)
    if shift_GK is not None:
        value = value - (weight_GK * shift_GK * to_policy_GK).mean()
    return Loss(
        value=value,
        advantage_GK=advantage_GK,
        values_GK={
            "log_z": log_z_G1.detach().expand_as(scaled_GK),
            "residual": scaled_GK.detach() / beta,
            "log_ratio": (policy_GK - reference_GK).detach(),
            "advantage": advantage_GK,
            "weight": weight_GK,
        },
    )


class BalanceSettings(ShiftSettings, StaleSettings, TargetSettings):
    """Settings of every form of trajectory balance: its target, and what is done about stale data."""


class Settings(BalanceSettings):
    """Trajectory balance in its VarGrad form: log Z of a prompt is estimated from the responses of its group."""

    kind: Literal["trajectory_balance"] = Field("trajectory_balance", description=KIND_TEXT)

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return TrajectoryBalance(self, num_steps)


class TrajectoryBalance(Objective):
    def __init__(self, settings: BalanceSettings, num_steps: int) -> None:
        self._settings = settings
        self._num_steps = num_steps
        self._offset = SamplingOffset()

    def __call__(self, evidence: Evidence) -> Loss:
        return self.balance(evidence, None)

    def balance(self, evidence: Evidence, log_z_G1: Tensor | None) -> Loss:
        """The loss with this log Z of each group; None: estimated from its responses."""
        settings, length_GK = self._settings, evidence.length_GK
        drift_GK = drift_since_sampling(evidence.drift_GK, length_GK, evidence.age_GK, self._offset.per_token)
        per_token_GK = drift_per_token(drift_GK, length_GK, settings.stale_length)
        beta, reference_weight = settings.target_at(evidence.step, self._num_steps)
        loss = trajectory_balance(
            evidence.policy_GK,
            evidence.reference_GK,
            evidence.reward_GK,
            beta=beta,
            reference_weight=reference_weight,
            log_z_G1=log_z_G1,
            shift_GK=shift_of(settings, drift_GK, evidence.reward_GK),
            weigh=lambda advantage_GK: stale_weights(
                advantage_GK, per_token_GK, settings.stale_negatives, settings.stale_threshold
            ),
        )
        is_fresh_GK = (evidence.age_GK == 0) & evidence.on_policy_GK
        measured = {"log_ratio_per_token": evidence.drift_GK / length_GK, "is_fresh": is_fresh_GK}
        share = evidence.shape[0] / evidence.totals.num_groups
        return Loss(loss.value * share, loss.advantage_GK, {**loss.values_GK, **measured})

    def metrics(self, step: int, values: StepValues) -> dict[str, float]:
        beta, reference_weight = self._settings.target_at(step, self._num_steps)
        removed, weighed = removed_by(values["weight"], values["advantage"])
        return {
            "log_z": float(values["log_z"].mean()),
            "residual_rms": float(np.sqrt(np.square(values["residual"]).mean())),
            "log_ratio": float(values["log_ratio"].mean()),
            "beta": beta,
            "reference_weight": reference_weight,
            "stale/removed": removed,
            "stale/weighed": weighed,
            "stale/offset": self._offset.per_token,
        }

    def after_step(self, values: StepValues) -> None:
        self._offset.measure(values["log_ratio_per_token"], values["is_fresh"] > 0)

    def state(self) -> dict[str, float]:
        return self._offset.state()

    def restore(self, state: Mapping[str, float]) -> None:
        self._offset.restore(state)
