"""At which temperature a Searcher samples: now and then another one than the policy's, to find what it would not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tba.seeds import Purpose, generator


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
