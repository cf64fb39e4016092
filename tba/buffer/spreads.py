"""How much the rewards of each prompt differ, from all that was merged: what Searchers choose prompts by.

It holds two numbers for each prompt, whatever leaves the buffer. A checkpoint has them, because groups that Searchers
did not hand up are not in the rollout log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tba.types import Group, PromptSpreads, Unused, prompt_key

KEPT = 0.5
"""What the groups of before count when another of the same prompt arrives: the policy has changed since."""


class SpreadTable:
    """The table as it was last published, and what has arrived since.

    Arrivals wait for `fold`, which a sync calls: so the first publication after a resume is the last one before it,
    also if the run was stopped between two syncs.
    """

    def __init__(self) -> None:
        self._entries: dict[str, tuple[float, float]] = {}
        """By prompt id: the number of responses, and their squared differences to the mean of their group."""
        self._arrived: list[tuple[str, int, float]] = []

    def add(self, arrived: Group | Unused) -> None:
        if isinstance(arrived, Unused):
            self._arrived.append((arrived.prompt_id, arrived.num_responses, 0.0))
            return
        rewards = np.array([t.reward for t in arrived.trajectories])
        self._arrived.append((arrived.prompt.id, len(rewards), float(((rewards - rewards.mean()) ** 2).sum())))

    def fold(self) -> None:
        """Take what has arrived into the table."""
        for prompt_id, num, squares in self._arrived:
            before = self._entries.get(prompt_id, (0.0, 0.0))
            self._entries[prompt_id] = (KEPT * before[0] + num, KEPT * before[1] + squares)
        self._arrived.clear()

    def spreads(self) -> PromptSpreads:
        """What was folded in so far."""
        numbers = np.array(list(self._entries.values()), np.float64).reshape(-1, 2)
        keys = np.fromiter(map(prompt_key, self._entries), np.uint64, len(self._entries))
        return PromptSpreads(keys, numbers[:, 0], numbers[:, 1])

    def state(self) -> dict[str, Any]:
        """As JSON takes it."""
        return {"entries": self._entries, "arrived": self._arrived}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._entries = {prompt_id: (num, squares) for prompt_id, (num, squares) in state["entries"].items()}
        self._arrived = [(prompt_id, num, squares) for prompt_id, num, squares in state["arrived"]]
