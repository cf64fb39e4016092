"""Which response is being decoded in which slot. Responses of a prompt that agree so far share one slot.

A slot is a row of the forward pass. Sampling several responses to a prompt grows a tree: all begin at one node, and
part where they draw different tokens. Only distinct prefixes are computed, which late in training is a fraction of
the responses. Slots form a rectangle of W rows × G prompts (slot = w·G + g), so that it grows and shrinks at its end
and few slots ever move. Plain bookkeeping: no model, no randomness.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

DROP_PROMPTS_BELOW = 0.75
"""Prompts with no response left leave once fewer than this share remains: dropping one moves all slots."""


class Branches:
    def __init__(self, num_prompts: int, num_responses: int) -> None:
        """Each prompt starts with one slot, which all its responses share."""
        self.num_prompts = num_prompts
        """Prompts in the rectangle, G."""
        self.width = 1
        """Slots for each prompt, W."""
        self.active_A: Ints = np.arange(num_prompts * num_responses)
        """Responses that go on, in order."""
        self.slot_A: Ints = np.repeat(np.arange(num_prompts), num_responses)
        """The slot of each."""

    @property
    def num_slots(self) -> int:
        return self.width * self.num_prompts

    def finish(self, done_A: NDArray[np.bool_]) -> None:
        """These of the active responses have ended."""
        self.active_A = self.active_A[~done_A]
        self.slot_A = self.slot_A[~done_A]

    def extend(self, tokens_A: Ints) -> tuple[Ints, Ints | None]:
        """Active responses take one more token each: the token of every slot, and where slots come from.

        The second is (W, G), the old slot each new one continues, or None if all stay where they are. Slots that no
        response is in go on with some other of their prompt's, unheeded.
        """
        base = int(tokens_A.max()) + 1
        nodes, node_A = np.unique(self.slot_A * base + tokens_A, return_inverse=True)
        parents, tokens = np.divmod(nodes, base)
        first_of_parent = np.concatenate([[True], parents[1:] != parents[:-1]])
        counts_G = np.bincount(parents % self.num_prompts, minlength=self.num_prompts)
        width = int(counts_G.max())
        alive_G = counts_G > 0
        sources: Ints | None
        if alive_G.sum() < DROP_PROMPTS_BELOW * self.num_prompts:
            places, sources = self._without_dead_prompts(parents, alive_G, width)
        elif width == self.width and first_of_parent.all():
            places, sources = parents, None
        else:
            places, sources = self._resized(parents, first_of_parent, width)
        self.width = width
        self.slot_A = places[node_A]
        token_R = np.zeros(self.num_slots, dtype=np.int64)
        token_R[places] = tokens
        return token_R, sources

    def _resized(self, parents: Ints, first_of_parent: NDArray[np.bool_], width: int) -> tuple[Ints, Ints]:
        """Nodes stay in the slot they continue where they can; the others fill free ones of their prompt's column."""
        G = self.num_prompts
        stays = first_of_parent & (parents < width * G)
        places = parents.copy()
        free_WG = np.ones((width, G), dtype=bool)
        free_WG.reshape(-1)[parents[stays]] = False
        movers = np.flatnonzero(~stays)
        column = parents[movers] % G
        movers = movers[np.argsort(column, kind="stable")]
        column = np.sort(column, kind="stable")
        # The r-th mover of a column goes to its r-th free slot.
        free_column, free_row = np.nonzero(free_WG.T)
        nth = np.arange(len(column)) - np.searchsorted(column, column)
        chosen = np.searchsorted(free_column, column) + nth
        places[movers] = free_row[chosen] * G + column
        sources = np.arange(width * G) % G  # of the first row: there is always one
        kept = min(width, self.width) * G
        sources[:kept] = np.arange(kept)
        sources[places] = parents
        return places, sources.reshape(width, G)

    def _without_dead_prompts(self, parents: Ints, alive_G: NDArray[np.bool_], width: int) -> tuple[Ints, Ints]:
        """A smaller rectangle, everything in a new place."""
        old_columns = np.flatnonzero(alive_G)
        column = (np.cumsum(alive_G) - 1)[parents % self.num_prompts]
        order = np.argsort(column, kind="stable")
        row = np.empty_like(parents)
        row[order] = np.arange(len(parents)) - np.searchsorted(column[order], column[order])
        sources_WG = np.tile(old_columns, (width, 1))
        sources_WG[row, column] = parents
        self.num_prompts = len(old_columns)
        return row * self.num_prompts + column, sources_WG
