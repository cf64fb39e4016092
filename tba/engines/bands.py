"""Slots of similar length: the keys and values of their own tokens, with room ahead for the next.

All slots take one token a step, so the difference between two of them never changes, and slots that fit together once
fit for good. Products read the room of the longest for every slot of a band. What that wastes must stay below what one
more band costs, which is a few more operations for each layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tba.engines.branches import Ints
from tba.policy.devices import as_tensor

BLOCK = 16
"""Room grows by as many tokens. Products read all of it, the empty end too: memory that is read without gaps arrives
more than twice as fast."""
BAND_COST = 600_000
"""Numbers of keys and values that can be read in the time that one more band takes."""


class Band:
    """Each step writes one column, which is the same for all slots, so that slots have tokens in different columns.

    Their order does not matter to attention. A column that no slot needs any more is written again.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Tensors of (any, heads, any, D), one for each layer, of which the shapes are taken."""
        self.keys = [key.new_empty(0, key.shape[1], 0, key.shape[3]) for key in keys]
        self.values = [value.new_empty(0, value.shape[1], 0, value.shape[3]) for value in values]
        self._bias = self.keys[0].new_empty(0, 1, 1, 0)
        """0 for the columns of a slot, −∞ for others."""
        self._width = sum(one.shape[1] * one.shape[3] for one in (self.keys[0], self.values[0]))
        self._clock = 0
        """Steps so far."""
        self._begun_R: Ints = np.empty(0, dtype=np.int64)
        """When each slot began."""
        self._written_T: Ints = np.empty(0, dtype=np.int64)
        """When each column was written; −1: never."""
        self._column = 0

    @property
    def num_slots(self) -> int:
        return len(self._begun_R)

    @property
    def lengths(self) -> Ints:
        """Tokens that each slot has."""
        return self._clock - self._begun_R

    @property
    def room(self) -> int:
        return len(self._written_T)

    def fits(self, lengths: Ints) -> bool:
        """Whether slots of these lengths may join."""
        joined = np.concatenate([self.lengths, lengths])
        return int(joined.max() * len(joined) - joined.sum()) * self._width <= BAND_COST

    def keep(self, sources: Ints) -> Ints:
        """There are as many slots as sources now, each going on from an old one: their places, in the order given.

        Few ever move: the first to go on from a place stays there, and the others take what is free.
        """
        places = _seats(sources)
        moved = np.flatnonzero(places != sources)
        if len(moved):
            self._reserve(len(places), self.room)
            to, origin = (as_tensor(index[moved], self._bias.device) for index in (places, sources))
            for own in (*self.keys, *self.values, self._bias):
                own[to] = own[origin]
        begun_R = np.empty(len(places), dtype=np.int64)
        begun_R[places] = self._begun_R[sources]
        self._begun_R = begun_R
        return places

    def begin(self, num_slots: int) -> None:
        """New slots after the others, without tokens."""
        n = self.num_slots
        self._reserve(n + num_slots, self.room)
        for own in (*self.keys, *self.values):
            # Zeros, since memory as it comes might hold what no weight of zero makes a number.
            own[n : n + num_slots] = 0.0
        self._bias[n : n + num_slots] = -torch.inf
        self._begun_R = np.concatenate([self._begun_R, np.full(num_slots, self._clock)])

    def absorb(self, other: Band) -> None:
        """The slots of a younger band come after these."""
        n, m = self.num_slots, other.num_slots
        ahead = self._clock - other._clock
        theirs_T = np.flatnonzero(other._written_T >= other._begun_R.min())
        # This band is older, and has a column for every step in which the other has one.
        mine_T = np.flatnonzero(np.isin(self._written_T, other._written_T[theirs_T] + ahead))
        mine_T = mine_T[np.argsort(self._written_T[mine_T])]
        theirs_T = theirs_T[np.argsort(other._written_T[theirs_T])]
        self.begin(m)
        to, origin = (as_tensor(columns, self._bias.device) for columns in (mine_T, theirs_T))
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine[n : n + m].index_copy_(2, to, theirs[:m].index_select(2, origin))
        self._bias[n : n + m].index_copy_(3, to, other._bias[:m].index_select(3, origin))
        self._begun_R[n:] = other._begun_R + ahead

    def begin_step(self) -> None:
        """Find a column for one more token of each slot."""
        self._column = int(self._written_T.argmin()) if self.room else 0
        if not self.room or self._written_T[self._column] >= self._begun_R.min():
            self._column = self.room
            self._reserve(self.num_slots, self.room + BLOCK)
        self._written_T[self._column] = self._clock
        self._bias[: self.num_slots, ..., self._column] = 0.0

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, prompt_scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take in each slot's new key and value, (R, heads, 1, D). One softmax over the prompt's keys and its own: the
        weights of the prompt's, and what its own give."""
        n, P = self.num_slots, prompt_scores.shape[-1]
        keys, values = self.keys[layer][:n], self.values[layer][:n]
        keys.select(2, self._column).copy_(key.squeeze(2))
        values.select(2, self._column).copy_(value.squeeze(2))
        own_scores = (query @ keys.transpose(2, 3)).add_(self._bias[:n])
        weights = torch.cat([prompt_scores, own_scores], dim=-1).softmax(dim=-1)
        return weights[..., :P], weights[..., P:] @ values

    def end_step(self) -> None:
        self._clock += 1

    def _reserve(self, num_slots: int, room: int) -> None:
        capacity = len(self._bias)
        if num_slots <= capacity and room == self.room:
            return
        capacity = 2 * num_slots
        n, before = self.num_slots, self.room
        for own in (self.keys, self.values):
            for layer, tensor in enumerate(own):
                # Not more is written than there are slots: memory that nobody touches costs nothing.
                larger = tensor.new_empty(capacity, tensor.shape[1], room, tensor.shape[3])
                larger[:n, :, :before] = tensor[:n]
                larger[:n, :, before:] = 0.0
                own[layer] = larger
        bias = self._bias.new_full((capacity, 1, 1, room), -torch.inf)
        bias[:n, ..., :before] = self._bias[:n]
        self._bias = bias
        self._written_T = np.concatenate([self._written_T, np.full(room - before, -1)])


def _seats(sources: Ints) -> Ints:
    """A place below their number for each of those that go on from these old places; as many as can stay do."""
    n = len(sources)
    first = np.zeros(n, dtype=bool)
    first[np.unique(sources, return_index=True)[1]] = True
    stays = first & (sources < n)
    is_free = np.ones(n, dtype=bool)
    is_free[sources[stays]] = False
    places = sources.copy()
    places[~stays] = np.flatnonzero(is_free)
    return places
