"""A reference that follows the policy: a copy of it from time to time, or the running mean of its weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from tba.policy.batch import Batch
from tba.policy.policy import Policy


class MovingReference:
    """Values of its own for the policy's trainable parameters (adapters, where these are trained), which stand in for
    them during a pass. So both are computed by the same module, and right after a reset they agree to the bit.
    """

    def __init__(self, policy: Policy, *, reset_period: int = 0, ema: float | None = None) -> None:
        """It begins as the policy is now. Every `reset_period` steps it becomes the policy as it is then, if that is
        not 0; or after each step it moves from its own weights, of which the share `ema` stays, to the policy's."""
        self._policy = policy
        self._reset_period = reset_period
        self._ema = ema
        self._values = {name: p.detach().clone() for name, p in policy.named_parameters() if p.requires_grad}

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """What it makes of every token of the trajectories that the policy wrote, to (J)."""
        parts = [functional_call(self._policy, self._values, (part,)).tokens_T for part in batch.parts]
        return torch.cat(parts).index_select(0, batch.token_J)

    @torch.no_grad()
    def follow(self, step: int) -> bool:
        """Move, now that this step is made; whether that was a reset."""
        is_reset = self._reset_period > 0 and step % self._reset_period == 0
        parameters = dict(self._policy.named_parameters())
        for name, value in self._values.items():
            if is_reset:
                value.copy_(parameters[name])
            elif self._ema is not None:
                value.lerp_(parameters[name], 1 - self._ema)
        return is_reset

    def tensors(self) -> Mapping[str, Tensor]:
        """Its values, for a checkpoint."""
        return self._values

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the `tensors` of another one."""
        for name, value in self._values.items():
            value.copy_(tensors[name])
