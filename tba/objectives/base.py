"""What an objective is: a pure function from log-probabilities and rewards to a loss."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A scalar to minimise, the mean over groups, and detached numbers beside it."""

    value: Tensor
    advantage_GK: Tensor
    """How strongly each trajectory is pushed: the gradient of `value` is minus the mean of this × ∇ log π."""
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    def __call__(
        self,
        policy_GK: Tensor,
        reference_GK: Tensor,
        reward_GK: Tensor,
        *,
        beta: float,
        reference_weight: float = ...,
        log_z_G1: Tensor | None = ...,
    ) -> Loss: ...
