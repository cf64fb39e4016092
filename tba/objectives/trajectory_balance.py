"""Trajectory balance (arXiv 2503.18929, eq. 4, 5 and 7): in its VarGrad form, or with a log Z that is given.

The residual of a trajectory is log Z + log π − log π_ref − r/β. In the VarGrad form log Z is estimated from the K
responses to the same prompt. The loss is β/2 times the mean squared residual: its gradient is then exactly
−mean(A · ∇ log π) with A = r − β (log Z + κ), κ = log π − log π_ref, for every β, which VarGrad makes
(r − r̄) − β (κ − κ̄). On-policy that is REINFORCE with a mean baseline and the KL in the reward; off-policy it keeps
its minimiser, π_ref · exp(r/β) / Z, with no importance ratio. The gradient of a learned log Z is −mean(A).
"""

from __future__ import annotations

from torch import Tensor

from tba.objectives.base import Loss


def trajectory_balance(
    policy_GK: Tensor,
    reference_GK: Tensor,
    reward_GK: Tensor,
    *,
    beta: float,
    reference_weight: float = 1.0,
    log_z_G1: Tensor | None = None,
) -> Loss:
    """Sequence log-probabilities and rewards of G groups of K to the loss.

    `reference_weight` is the power of the reference in the target π_ref^w · exp(r/β) / Z.
    """
    log_ratio_GK = policy_GK - reference_weight * reference_GK
    if log_z_G1 is None:
        log_z_G1 = (reward_GK / beta - log_ratio_GK).mean(dim=1, keepdim=True).detach()
    # β × residual, written so that small β does not blow numbers up before they cancel.
    scaled_GK = beta * (log_z_G1 + log_ratio_GK) - reward_GK
    residual_GK = scaled_GK.detach() / beta
    return Loss(
        value=scaled_GK.square().mean() / (2 * beta),
        advantage_GK=-scaled_GK.detach(),
        metrics={
            "log_z": log_z_G1.detach().mean(),
            "residual_rms": residual_GK.square().mean().sqrt(),
            "log_ratio": (policy_GK - reference_GK).detach().mean(),
        },
    )
