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
BAND_COST = 250_000
"""Numbers of keys and values that can be read in the time that one more band takes."""


class Band:
    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Tensors of (any, heads, any, D), one for each layer, of which the shapes are taken."""
        self.lengths: Ints = np.empty(0, dtype=np.int64)
        """Tokens that each slot has."""
        self.keys = [key.new_zeros(0, key.shape[1], BLOCK, key.shape[3]) for key in keys]
        self.values = [value.new_zeros(0, value.shape[1], BLOCK, value.shape[3]) for value in values]
        self._width = sum(one.shape[1] * one.shape[3] for one in (self.keys[0], self.values[0]))
        self._places: dict[int, Tensor] = {}
        self._bias: Tensor

    @property
    def num_slots(self) -> int:
        return len(self.lengths)

    @property
    def room(self) -> int:
        return self.keys[0].shape[2]

    def fits(self, lengths: Ints) -> bool:
        """Whether slots of these lengths may join."""
        joined = np.concatenate([self.lengths, lengths])
        return int(joined.max() * len(joined) - joined.sum()) * self._width <= BAND_COST

    def keep(self, sources: Ints) -> Ints:
        """There are as many slots as sources now, each going on from an old one: their places, in the order given.

        Few ever move: the first to go on from a place stays there, and the others take what is free.
        """
        places = _seats(sources)
        if len(places) != self.num_slots or (places != sources).any():
            self._reserve(len(places), self.room)
            moved = np.flatnonzero(places != sources)
            to, origin = (as_tensor(index[moved], self.keys[0].device) for index in (places, sources))
            longest = int(self.lengths[sources].max())
            for own in (*self.keys, *self.values):
                own[to, :, :longest] = own[origin, :, :longest]
            lengths = np.empty(len(places), dtype=np.int64)
            lengths[places] = self.lengths[sources]
            self.lengths = lengths
        return places

    def begin(self, num_slots: int) -> None:
        """New slots after the others, without tokens."""
        self._reserve(self.num_slots + num_slots, self.room)
        self.lengths = np.concatenate([self.lengths, np.zeros(num_slots, dtype=np.int64)])

    def absorb(self, other: Band) -> None:
        """The slots of a younger band come after these."""
        n, m = self.num_slots, other.num_slots
        self._reserve(n + m, max(self.room, other.room))
        for mine, theirs in zip((*self.keys, *self.values), (*other.keys, *other.values), strict=True):
            mine[n : n + m, :, : theirs.shape[2]] = theirs[:m]
        self.lengths = np.concatenate([self.lengths, other.lengths])

    def begin_step(self) -> None:
        """Make room for one more token of each slot."""
        if int(self.lengths.max()) == self.room:
            self._reserve(self.num_slots, self.room + BLOCK)
        self._places.clear()
        bias_RT = np.where(np.arange(self.room) > self.lengths[:, None], -np.inf, 0.0)
        self._bias = as_tensor(bias_RT[:, None, None], self.keys[0].device).to(self.keys[0].dtype)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, prompt_scores: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Take in each slot's new key and value, (R, heads, 1, D). One softmax over the prompt's keys and its own: the
        weights of the prompt's, and what its own give."""
        for own, new in ((self.keys[layer], key), (self.values[layer], value)):
            own.view(-1, own.shape[3]).index_copy_(0, self._place(own), new.reshape(-1, own.shape[3]))
        n, P = self.num_slots, prompt_scores.shape[-1]
        own_scores = (query @ self.keys[layer][:n].transpose(2, 3)).add_(self._bias)
        weights = torch.cat([prompt_scores, own_scores], dim=-1).softmax(dim=-1)
        return weights[..., :P], weights[..., P:] @ self.values[layer][:n]

    def end_step(self) -> None:
        self.lengths = self.lengths + 1

    def _place(self, own: Tensor) -> Tensor:
        """Where each head of each slot has its next token in (slots, heads, room), flattened."""
        heads = own.shape[1]
        if heads not in self._places:
            rows = np.arange(self.num_slots * heads).reshape(-1, heads) * self.room + self.lengths[:, None]
            self._places[heads] = as_tensor(rows.ravel(), own.device)
        return self._places[heads]

    def _reserve(self, num_slots: int, room: int) -> None:
        capacity = len(self.keys[0])
        if num_slots <= capacity and room == self.room:
            return
        if num_slots > capacity:
            capacity = max(num_slots, min(2 * capacity, 2 * num_slots))
        else:
            capacity = min(capacity, 2 * num_slots)
        n = min(capacity, self.num_slots)
        for own in (self.keys, self.values):
            for layer, tensor in enumerate(own):
                # Zeros, since memory as it comes might hold what no weight of zero makes a number.
                larger = tensor.new_zeros(capacity, tensor.shape[1], room, tensor.shape[3])
                larger[:n, :, : tensor.shape[2]] = tensor[:n]
                own[layer] = larger


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
