"""One copy of the keys and values of each prompt that has slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tba.engines.branches import Ints
from tba.policy.devices import as_tensor

REBUILD_BELOW = 0.75
"""Prompts are copied together once fewer than this share of the places, or of their length, is in use."""


@dataclass(frozen=True)
class ReadPrompts:
    """Prompts that were read together, padded on the right: for each layer (G, heads, P, D)."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Ints


@dataclass(frozen=True)
class ReadPrompt:
    together: ReadPrompts
    row: int
    name: object
    """Tells this prompt from every other, and outlives its tensors."""

    @property
    def length(self) -> int:
        return int(self.together.lengths[self.row])


class PromptKeys:
    """G places, each with a prompt or free. A free place is taken by the next prompt that begins."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.lengths: Ints = np.empty(0, dtype=np.int64)
        """Tokens of each prompt; 0: the place is free."""
        self._names: list[object] = []
        """Of the prompt at each place."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.bias = torch.empty(0, device="cpu")
        """(G, 1, 1, P): 0 for tokens, −∞ for what is none."""

    @property
    def num_places(self) -> int:
        return len(self.lengths)

    @property
    def _width(self) -> int:
        return self.keys[0].shape[2] if self.keys else 0

    def exchange(self, used_N: Ints, arriving: Sequence[ReadPrompt]) -> tuple[Ints, Ints]:
        """Only the prompts at these places stay, and others arrive: where the first are now, and where the second.

        One that arrives may be here already, for other responses to it.
        """
        is_used = np.zeros(self.num_places, dtype=bool)
        is_used[used_N] = True
        used, index_N = np.flatnonzero(is_used), used_N
        for place in np.flatnonzero(~is_used).tolist():
            self.lengths[place], self._names[place] = 0, None
        here = [self._names[place] for place in used.tolist()]
        new = [prompt for prompt in arriving if not any(prompt.name is name for name in here)]
        num = len(used) + len(new)
        longest = max([*self.lengths.tolist(), *(prompt.length for prompt in new)])
        if num > self.num_places or longest > self._width:
            self._rebuild(used, max(num, self.num_places), max(longest, self._width), new)
            index_N = np.searchsorted(used, used_N)
        elif num < REBUILD_BELOW * self.num_places or longest < REBUILD_BELOW * self._width:
            self._rebuild(used, num, longest, new)
            index_N = np.searchsorted(used, used_N)
        self._put(new)
        return index_N, np.array([self._names.index(prompt.name) for prompt in arriving], dtype=np.int64)

    def _rebuild(self, used: Ints, num_places: int, width: int, arriving: Sequence[ReadPrompt]) -> None:
        lengths = np.zeros(num_places, dtype=np.int64)
        lengths[: len(used)] = self.lengths[used]
        like = arriving[0].together if arriving else self
        kept = min(width, self._width)
        for name in ("keys", "values"):
            old, rebuilt = getattr(self, name), []
            for layer, tensor in enumerate(getattr(like, name)):
                new = tensor.new_zeros(num_places, tensor.shape[1], width, tensor.shape[3])
                if len(used):
                    new[: len(used), :, :kept] = old[layer][as_tensor(used, tensor.device), :, :kept]
                rebuilt.append(new)
            setattr(self, name, rebuilt)
        names = [self._names[place] for place in used.tolist()]
        self.lengths, self._names = lengths, names + [None] * (num_places - len(used))
        self._mask()

    def _put(self, arriving: Sequence[ReadPrompt]) -> None:
        places = np.flatnonzero(self.lengths == 0)[: len(arriving)]
        for place, prompt in zip(places.tolist(), arriving, strict=True):
            self._names[place] = prompt.name
        for together in {id(prompt.together): prompt.together for prompt in arriving}.values():
            chosen = [i for i, prompt in enumerate(arriving) if prompt.together is together]
            rows = np.array([arriving[i].row for i in chosen])
            self.lengths[places[chosen]] = together.lengths[rows]
            width = int(together.lengths[rows].max())
            device = together.keys[0].device
            to, origin = as_tensor(places[chosen], device), as_tensor(rows, device)
            for mine, theirs in zip((*self.keys, *self.values), (*together.keys, *together.values), strict=True):
                mine[to, :, :width] = theirs[origin, :, :width]
        if arriving:
            self._mask()

    def _mask(self) -> None:
        bias_GP = np.where(np.arange(self._width) < self.lengths[:, None], 0.0, -np.inf)
        self.bias = as_tensor(bias_GP[:, None, None], self.keys[0].device).to(self.keys[0].dtype)
