"""Trajectory balance in its VarGrad form (arXiv 2503.18929, eq. 4, 5 and 7).

The residual of a trajectory is log Z + log π − log π_ref − r/β, with log Z estimated from the K responses to the
same prompt. The loss is β/2 times the mean squared residual: its gradient is then exactly −mean(A · ∇ log π) with
A = (r − r̄) − β (κ − κ̄), κ = log π − log π_ref, for every β. On-policy that is REINFORCE with a mean baseline and
the KL in the reward; off-policy it keeps its minimiser, π_ref · exp(r/β) / Z, with no importance ratio.
"""

from __future__ import annotations

from torch import Tensor

from tba.objectives.base import Loss


def trajectory_balance(policy_GK: Tensor, reference_GK: Tensor, reward_GK: Tensor, *, beta: float) -> Loss:
    """Sequence log-probabilities and rewards of G groups of K to the VarGrad loss."""
    log_ratio_GK = policy_GK - reference_GK
    log_z_G1 = (reward_GK / beta - log_ratio_GK).mean(dim=1, keepdim=True).detach()
    # β × residual, written so that small β does not blow numbers up before they cancel.
    scaled_GK = beta * (log_z_G1 + log_ratio_GK) - reward_GK
    residual_GK = scaled_GK.detach() / beta
    return Loss(
        value=scaled_GK.square().mean() / (2 * beta),
        advantage_GK=-scaled_GK.detach(),
        metrics={
            "log_z": log_z_G1.mean(),
            "residual_rms": residual_GK.square().mean().sqrt(),
            "log_ratio": log_ratio_GK.detach().mean(),
        },
    )
