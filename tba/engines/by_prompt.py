"""Slots of one prompt brought together, so that they read its keys and values in one product."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tba.engines.branches import Ints
from tba.policy.devices import as_tensor


class ByPrompt:
    """R slots in a rectangle of G prompts × W, where W is the most that a prompt has. The rest of it is empty.

    The layers work on the slots alone; only what concerns the prompts is computed on the rectangle.
    """

    def __init__(self, prompt_R: Ints, num_prompts: int, device: torch.device) -> None:
        self._prompt_R = prompt_R
        self._column_R = rank_among_equals(prompt_R)
        self._num_prompts = num_prompts
        self._width = int(self._column_R.max()) + 1
        self._device = device
        self._by_heads: dict[int, tuple[Tensor, Tensor]] = {}

    def spread(self, x: Tensor) -> Tensor:
        """(R, heads, repeat, D) to (G, heads, W·repeat, D). What is in empty places means nothing."""
        _, heads, repeat, D = x.shape
        rectangle = x.reshape(-1, repeat * D).index_select(0, self._indices(heads)[1])
        return rectangle.view(-1, heads, self._width * repeat, D)

    def collect(self, x: Tensor, repeat: int) -> Tensor:
        """Back again."""
        _, heads, _, D = x.shape
        return x.view(-1, repeat * D).index_select(0, self._indices(heads)[0]).view(-1, heads, repeat, D)

    def _indices(self, heads: int) -> tuple[Tensor, Tensor]:
        """Where each head of each slot lies in (G, heads, W), flattened, and which lies at each place there.

        Layers may differ in their heads.
        """
        if heads not in self._by_heads:
            rows = self._prompt_R[:, None] * heads + np.arange(heads)
            place = (rows * self._width + self._column_R[:, None]).ravel()
            origin = np.zeros(self._num_prompts * heads * self._width, dtype=np.int64)
            origin[place] = np.arange(len(place))
            self._by_heads[heads] = (as_tensor(place, self._device), as_tensor(origin, self._device))
        return self._by_heads[heads]


def rank_among_equals(values: Ints) -> Ints:
    """How many earlier entries have the same value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    rank = np.empty_like(values)
    rank[order] = np.arange(len(values)) - np.searchsorted(ordered, ordered)
    return rank
