"""Trajectory balance (arXiv 2503.18929, eq. 4, 5 and 7): in its VarGrad form, or with a log Z that is given.

The residual of a trajectory is log Z + log π − log π_ref − r/β. In the VarGrad form log Z is estimated from the K
responses to the same prompt. The loss is β/2 times the mean squared residual: its gradient is then exactly
−mean(A · ∇ log π) with A = r − β (log Z + κ), κ = log π − log π_ref, for every β, which VarGrad makes
(r − r̄) − β (κ − κ̄). On-policy that is REINFORCE with a mean baseline and the KL in the reward; off-policy it keeps
its minimiser, π_ref · exp(r/β) / Z, with no importance ratio. The gradient of a learned log Z is −mean(A).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from tba.objectives.base import Evidence, Loss, Objective
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
) -> Loss:
    """Sequence log-probabilities and rewards of G groups of K to the loss, the mean over these groups.

    `reference_weight` is the power of the reference in the target π_ref^w · exp(r/β) / Z.
    """
    log_ratio_GK = policy_GK - reference_weight * reference_GK
    if log_z_G1 is None:
        log_z_G1 = (reward_GK / beta - log_ratio_GK).mean(dim=1, keepdim=True).detach()
    # β × residual, written so that small β does not blow numbers up before they cancel.
    scaled_GK = beta * (log_z_G1 + log_ratio_GK) - reward_GK
    return Loss(
        value=scaled_GK.square().mean() / (2 * beta),
        advantage_GK=-scaled_GK.detach(),
        values_GK={
            "log_z": log_z_G1.detach().expand_as(scaled_GK),
            "residual": scaled_GK.detach() / beta,
            "log_ratio": (policy_GK - reference_GK).detach(),
        },
    )


class Settings(TargetSettings):
    """Trajectory balance in its VarGrad form: log Z of a prompt is estimated from the responses of its group."""

    kind: Literal["trajectory_balance"] = "trajectory_balance"
    """Which objective: `trajectory_balance`, `trajectory_balance_learned_z`, or one of your own (`module:Class`)."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        return TrajectoryBalance(self, num_steps)


class TrajectoryBalance(Objective):
    def __init__(self, target: TargetSettings, num_steps: int) -> None:
        self._target = target
        self._num_steps = num_steps

    def __call__(self, evidence: Evidence) -> Loss:
        return self.balance(evidence, None)

    def balance(self, evidence: Evidence, log_z_G1: Tensor | None) -> Loss:
        """The loss with this log Z of each group; None: estimated from its responses."""
        beta, reference_weight = self._target.target_at(evidence.step, self._num_steps)
        loss = trajectory_balance(
            evidence.policy_GK,
            evidence.reference_GK,
            evidence.reward_GK,
            beta=beta,
            reference_weight=reference_weight,
            log_z_G1=log_z_G1,
        )
        share = evidence.shape[0] / evidence.totals.num_groups
        return Loss(loss.value * share, loss.advantage_GK, loss.values_GK)

    def metrics(self, step: int, values: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        beta, reference_weight = self._target.target_at(step, self._num_steps)
        return {
            "log_z": float(values["log_z"].mean()),
            "residual_rms": float(np.sqrt(np.square(values["residual"]).mean())),
            "log_ratio": float(values["log_ratio"].mean()),
            "beta": beta,
            "reference_weight": reference_weight,
        }
