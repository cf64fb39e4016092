"""What a Searcher explores: the stream of prompts, and the temperature that responses to each are sampled at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tba.seeds import Purpose, generator
from tba.tasks.base import Problem


class PromptStream:
    """All training problems, shuffled anew each epoch, endlessly.

    Every Searcher walks all of them in an order of its own: no prompt belongs to a Searcher, so none is lost with one.
    The order of an epoch follows from the seed (the run's, and numbers that no other Searcher has), so the state is two
    numbers.
    """

    def __init__(self, problems: Sequence[Problem], seed: Sequence[int]) -> None:
        self._problems = problems
        self._seed = list(seed)
        self._epoch = -1
        self._cursor = len(problems)
        self._order = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> list[Problem]:
        taken: list[Problem] = []
        while len(taken) < count:
            if self._cursor >= len(self._problems):
                self._start(self._epoch + 1, 0)
            stop = min(self._cursor + count - len(taken), len(self._problems))
            taken += [self._problems[i] for i in self._order[self._cursor : stop]]
            self._cursor = stop
        return taken

    def state(self) -> dict[str, int]:
        return {"epoch": self._epoch, "cursor": self._cursor}

    def restore(self, state: dict[str, int]) -> None:
        self._start(state["epoch"], state["cursor"])

    def _start(self, epoch: int, cursor: int) -> None:
        self._epoch, self._cursor = epoch, cursor
        if epoch >= 0:
            self._order = generator(Purpose.PROMPT_ORDER, *self._seed, epoch).permutation(len(self._problems))


class Exploration:
    """With probability `fraction` a request is sampled at a temperature drawn from U(low, high).

    Trajectory balance allows any sampler. Log-probabilities are still trained at the policy's own temperature.
    `seed`: the run's, and numbers that no other Searcher has.
    """

    def __init__(self, fraction: float, low: float, high: float, seed: Sequence[int]) -> None:
        self._fraction, self._low, self._high = fraction, low, high
        self._rng = generator(Purpose.EXPLORATION, *seed)

    def draw(self) -> float | None:
        """The temperature of the next request; None: the policy's own."""
        if self._fraction == 0 or self._rng.random() >= self._fraction:
            return None
        return float(self._rng.uniform(self._low, self._high))

    def state(self) -> dict[str, Any]:
        return dict(self._rng.bit_generator.state)

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = dict(state)
