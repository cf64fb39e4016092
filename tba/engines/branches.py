"""Which response is being decoded in which slot. Responses of a prompt that agree so far share one slot.

A slot is a row of the forward pass. Sampling several responses to a prompt grows a tree: those that begin together
begin at one node, and part where they draw different tokens. Only distinct prefixes are computed, which late in
training are a fraction of the responses, and there are exactly as many slots as these. Plain bookkeeping: no model, no
random numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Branches:
    def __init__(self) -> None:
        self.num_slots = 0
        self.active_A: Ints = np.empty(0, dtype=np.int64)
        """Rows of the responses that go on."""
        self.slot_A: Ints = np.empty(0, dtype=np.int64)
        """The slot of each."""

    def begin(self, rows: Ints, prompt: Ints) -> None:
        """Responses begin: `prompt` numbers the prompts that begin with them from 0, each with a new slot."""
        self.active_A = np.concatenate([self.active_A, rows])
        self.slot_A = np.concatenate([self.slot_A, self.num_slots + prompt])
        self.num_slots += int(prompt.max(initial=-1)) + 1

    def finish(self, done_A: NDArray[np.bool_]) -> None:
        """These of the active responses have ended."""
        self.active_A = self.active_A[~done_A]
        self.slot_A = self.slot_A[~done_A]

    def extend(self, tokens_A: Ints) -> tuple[Ints, Ints]:
        """Active responses take one more token each: the token of every slot, and the old slot that each continues."""
        if np.bincount(self.slot_A, minlength=1).max() <= 1:  # each is alone, as most are most of the time
            sources_R, self.num_slots = self.slot_A, len(tokens_A)
            self.slot_A = np.arange(self.num_slots)
            return tokens_A, sources_R
        base = int(tokens_A.max(initial=0)) + 1
        nodes, self.slot_A = np.unique(self.slot_A * base + tokens_A, return_inverse=True)
        sources_R, token_R = np.divmod(nodes, base)
        self.num_slots = len(nodes)
        return token_R, sources_R
