"""What a Searcher explores: the stream of prompts, and the temperature that responses to each are sampled at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tba.seeds import Purpose, generator
from tba.tasks.base import Problem
from tba.types import PromptSpreads, prompt_key


class Prompts(Protocol):
    """What a Searcher takes its problems from."""

    @property
    def are_chosen(self) -> bool:
        """Whether it wants to know what came of the problems."""
        ...

    def take(self, count: int) -> list[Problem]: ...

    def learn(self, note: bytes) -> None:
        """What the Trainer says with new weights."""
        ...

    def state(self) -> dict[str, int]: ...

    def restore(self, state: dict[str, int]) -> None: ...


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

    are_chosen = False

    def learn(self, note: bytes) -> None:
        """It goes by no result."""

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
        if "epoch" in state:  # else prompts were chosen until now
            self._start(state["epoch"], state["cursor"])

    def _start(self, epoch: int, cursor: int) -> None:
        self._epoch, self._cursor = epoch, cursor
        if epoch >= 0:
            self._order = generator(Purpose.PROMPT_ORDER, *self._seed, epoch).permutation(len(self._problems))


class ChosenPrompts:
    """Training problems drawn by how much their rewards differ: each draw independently, by `shares`.

    The k-th draw follows from the seed, k and what was learnt last, so the state is one number.
    """

    are_chosen = True

    def __init__(self, problems: Sequence[Problem], seed: Sequence[int]) -> None:
        self._problems = problems
        self._seed = list(seed)
        self._keys = np.fromiter((prompt_key(p.prompt.id) for p in problems), np.uint64, len(problems))
        self._num_taken = 0
        self._cumulative = np.cumsum(np.ones(len(problems)))

    def learn(self, note: bytes) -> None:
        self._cumulative = np.cumsum(shares(self._keys, PromptSpreads.from_bytes(note)))

    def take(self, count: int) -> list[Problem]:
        numbers = range(self._num_taken, self._num_taken + count)
        self._num_taken += count
        points = np.array([generator(Purpose.CHOSEN_PROMPTS, *self._seed, number).random() for number in numbers])
        places = self._cumulative.searchsorted(points * self._cumulative[-1], side="right")
        # A product may be rounded up to the whole sum.
        return [self._problems[place] for place in np.minimum(places, len(self._problems) - 1)]

    def state(self) -> dict[str, int]:
        return {"taken": self._num_taken}

    def restore(self, state: dict[str, int]) -> None:
        self._num_taken = state.get("taken", 0)  # prompts were shuffled until now if it has none


def shares(keys: NDArray[np.uint64], spreads: PromptSpreads) -> NDArray[np.float64]:
    """The probability of each prompt: proportional to the variance of its rewards within groups, with one more response
    counted that has the largest variance of all prompts.

    So a prompt that was never explored counts as the best, and one whose n responses were all alike keeps at least
    1/(n + 1) of the average share. Where rewards are 0 or 1, the variance is p(1 − p) with p the share of right ones.
    """
    num, squares = np.zeros(len(keys)), np.zeros(len(keys))
    order = np.argsort(spreads.keys)
    known = spreads.keys[order]
    places = np.minimum(known.searchsorted(keys), max(len(known) - 1, 0))
    found = known[places] == keys if len(known) else np.zeros(len(keys), bool)
    num[found], squares[found] = spreads.num[order][places[found]], spreads.squares[order][places[found]]
    largest = np.divide(squares, num, out=np.zeros(len(keys)), where=num > 0).max(initial=0.0) or 1.0
    weights = (squares + largest) / (num + 1)
    return np.asarray(weights / weights.sum(), np.float64)


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
