"""log Z(x) as something learned: a linear function of what the policy makes of the prompt.

The VarGrad estimate compares the responses of one group; this one is carried from step to step, and so also knows
of responses that are not in the group. It is what the paper's red-teaming used.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from tba.policy.precision import at_least_float32


class LogPartition(nn.Module):
    """One number a prompt, from the mean of its last hidden states, which get no gradient from here."""

    started: Tensor
    """0 until it has been given its first value. Part of the state, so that a resumed run does not start it again."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("started", torch.zeros(()))

    def forward(self, prompt_GH: Tensor) -> Tensor:
        """(G, H) to (G, 1)."""
        # To unit size, so that a learning rate means the same for every model.
        value_G1: Tensor = self.linear(layer_norm(at_least_float32(prompt_GH.detach()), prompt_GH.shape[-1:]))
        return value_G1

    @torch.no_grad()
    def start_at(self, log_z: float) -> None:
        """Begin, once, at an estimate from data: from 0 it could be hundreds off, and the policy would pay for it."""
        if not self.started:
            self.linear.bias.fill_(log_z)
            self.started.fill_(1)
