"""What became of every trajectory that was merged: how often it was drawn, or why it left without ever being drawn.

A trajectory is known by its row, which is its place in the order of arrival and in the rollout log. Each has one fate:

    trained on      it was drawn for a step at least once, wherever it is now
    evicted         it left for want of room, and had never been drawn
    too stale       it left because of the staleness limit, and had never been drawn
    in the buffer   it is there, and has not been drawn yet

A trajectory that has left cannot be drawn any more, so the second and the third are settled when it leaves.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class RowLedger:
    """Four bytes for each trajectory ever merged. A step costs one addition for each trajectory it draws."""

    def __init__(self) -> None:
        self.num_merged: Counter[str] = Counter()
        """By the Searcher that made them."""
        self.num_evicted = 0
        """Trajectories that left for want of room and had never been drawn."""
        self.num_stale = 0
        """Trajectories that left because they were too old and had never been drawn."""
        self._num_draws = np.zeros(1024, np.int32)

    def arrive(self, source: str, stop: int, count: int) -> None:
        """So many trajectories have come from a Searcher; the row of the last is the one before `stop`."""
        self.num_merged[source] += count
        self._reserve(stop)

    def count_draws(self, rows: ArrayLike) -> None:
        """A step was trained on these rows. A row that was drawn twice in it counts twice."""
        flat = np.asarray(rows, np.int64).ravel()
        if flat.size:
            self._reserve(int(flat.max()) + 1)
            np.add.at(self._num_draws, flat, 1)

    def leave(self, row: int, *, stale: bool) -> None:
        """A trajectory left the buffer."""
        if self._num_draws[row]:
            return
        if stale:
            self.num_stale += 1
        else:
            self.num_evicted += 1

    def num_undrawn(self, rows: NDArray[np.int64]) -> int:
        """How many of these have never been drawn."""
        return int((self._num_draws[rows] == 0).sum())

    def values(self, num_undrawn: int) -> dict[str, Any]:
        """The counts as a record has them; `num_undrawn` of those in the buffer have not been drawn."""
        drawn = self._num_draws[self._num_draws > 0]
        return {
            "merged": dict(self.num_merged),
            "trained": len(drawn),
            "buffered": num_undrawn,
            "evicted": self.num_evicted,
            "too_stale": self.num_stale,
            "num_draws": int(drawn.sum()),
            "most_draws": int(drawn.max(initial=0)),
        }

    def split_undrawn(self, num_evicted: int) -> None:
        """Of those that left undrawn, so many were evicted and the others were too stale: for a history that was
        repeated, which may tell the two reasons apart differently."""
        num_left = self.num_evicted + self.num_stale
        self.num_evicted, self.num_stale = num_evicted, num_left - num_evicted

    def _reserve(self, num_rows: int) -> None:
        if num_rows > len(self._num_draws):
            grown = np.zeros(1 << (num_rows - 1).bit_length(), np.int32)
            grown[: len(self._num_draws)] = self._num_draws
            self._num_draws = grown
