"""Which response is being decoded in which slot. Responses of a prompt that agree so far share one slot.

A slot is a row of the forward pass. Sampling several responses to a prompt grows a tree: all begin at one node, and
part where they draw different tokens. Only distinct prefixes are computed, which late in training is a fraction of
the responses, and there are exactly as many slots as these. Plain bookkeeping: no model, no randomness.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Branches:
    def __init__(self, num_prompts: int, num_responses: int) -> None:
        """Each prompt starts with one slot, which all its responses share."""
        self.num_slots = num_prompts
        self.active_A: Ints = np.arange(num_prompts * num_responses)
        """Responses that go on, in order."""
        self.slot_A: Ints = np.repeat(np.arange(num_prompts), num_responses)
        """The slot of each."""

    def finish(self, done_A: NDArray[np.bool_]) -> None:
        """These of the active responses have ended."""
        self.active_A = self.active_A[~done_A]
        self.slot_A = self.slot_A[~done_A]

    def extend(self, tokens_A: Ints) -> tuple[Ints, Ints | None]:
        """Active responses take one more token each: the token of every slot, and the old slot each continues.

        The second is None if all stay where they are. Few ever move: the first to go on from a slot stays there, and
        the others, with those from slots that are no more, take what is free.
        """
        base = int(tokens_A.max()) + 1
        nodes, node_A = np.unique(self.slot_A * base + tokens_A, return_inverse=True)
        parents, tokens = np.divmod(nodes, base)
        R = len(nodes)
        first_of_parent = np.concatenate([[True], parents[1:] != parents[:-1]])
        stays = first_of_parent & (parents < R)
        free_R = np.ones(R, dtype=bool)
        free_R[parents[stays]] = False
        places = parents.copy()
        places[~stays] = np.flatnonzero(free_R)
        sources_R: Ints | None = None
        if self.num_slots != R or not stays.all():
            sources_R = np.empty(R, dtype=np.int64)
            sources_R[places] = parents
        token_R = np.empty(R, dtype=np.int64)
        token_R[places] = tokens
        self.num_slots = R
        self.slot_A = places[node_A]
        return token_R, sources_R
