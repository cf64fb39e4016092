"""The trajectories of one prompt in arrival order, and the law by which they are drawn.

Knows its own list only: which trajectory leaves when is the buffer's business, which one is drawn the sampler's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tba.buffer.gumbel import Floats, Indices, mixture_log_p
from tba.types import Prompt, Trajectory


class PromptTrajectories:
    """A first-in first-out list of places, each with a trajectory or vacated before its turn.

    Places are indices into `trajectories`, `rewards` and `arrivals`, from `start` to `stop`. A vacated place, and any
    outside of these, has no trajectory and the reward minus infinity. Indices hold until the next `append`. How
    places lie in memory follows from the appends and the removals at the front alone, not from what was vacated.
    """

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.trajectories: list[Trajectory | None] = []
        self.rewards: Floats = np.empty(0)
        self.arrivals: NDArray[np.int64] = np.empty(0, np.int64)
        self.start = self.stop = self.num_live = 0
        self._copies: dict[int, int] = {}
        self._cumulative: dict[tuple[float, float], Floats] = {}

    @property
    def num_places(self) -> int:
        return self.stop - self.start

    @property
    def num_distinct(self) -> int:
        """Different token sequences among the trajectories."""
        return len(self._copies)

    def append(self, trajectories: Sequence[Trajectory], first_arrival: int) -> None:
        self._make_room(len(trajectories))
        old, self.stop = self.stop, self.stop + len(trajectories)
        self.trajectories.extend(trajectories)
        self.rewards[old : self.stop] = [t.reward for t in trajectories]
        self.arrivals[old : self.stop] = np.arange(first_arrival, first_arrival + len(trajectories))
        self.num_live += len(trajectories)
        for trajectory in trajectories:
            key = _token_key(trajectory)
            self._copies[key] = self._copies.get(key, 0) + 1
        self._cumulative.clear()

    def remove_oldest(self) -> bool:
        """Take the first place away; False if it had been vacated before."""
        place, self.start = self.start, self.start + 1
        self._cumulative.clear()
        return self.vacate(place)

    def vacate(self, place: int) -> bool:
        """Let the trajectory of this place go; False if it had gone before."""
        trajectory = self.trajectories[place]
        if trajectory is None:
            return False
        self.trajectories[place] = None
        self.rewards[place] = -np.inf
        self.num_live -= 1
        key = _token_key(trajectory)
        self._copies[key] -= 1
        if not self._copies[key]:
            del self._copies[key]
        self._cumulative.clear()
        return True

    def holds_before(self, arrival: int) -> bool:
        """Whether any place, vacated or not, is left from before this arrival."""
        return self.start < self.stop and bool(self.arrivals[self.start] < arrival)

    def first_place_since(self, arrival: int) -> int:
        return self.start + int(self.arrivals[self.start : self.stop].searchsorted(arrival))

    def live_places(self, first: int) -> range | Indices:
        """Places from `first` on that have a trajectory; in constant time unless some were vacated."""
        if self.num_live == self.num_places:
            return range(first, self.stop)
        return first + np.flatnonzero(self.rewards[first : self.stop] > -np.inf)

    def log_p(self, uniform_fraction: float, inverse_temperature: float) -> Floats:
        """The log-probability of each place from `start` to `stop`: minus infinity where it is vacated."""
        return mixture_log_p(self.rewards[self.start : self.stop], uniform_fraction, inverse_temperature)

    def cumulative(self, uniform_fraction: float, inverse_temperature: float) -> Floats:
        """The probability of each place and all before it, which many draws from a long list look up.

        Summed anew after every change, so it follows from the list alone and a rebuilt buffer has the same to the bit.
        Changes come with merges: between two of them all draws use the same sums.
        """
        law = (uniform_fraction, inverse_temperature)
        if law not in self._cumulative:
            self._cumulative[law] = np.exp(self.log_p(*law)).cumsum()
        return self._cumulative[law]

    def _make_room(self, count: int) -> None:
        """Copy the places to the front of new arrays when there is no room behind them.

        A third of the new arrays stays free at least, so that copying costs constant time per place also when one
        place is taken away for each that comes.
        """
        if self.stop + count <= len(self.rewards):
            return
        needed = self.num_places + count
        size = 1 << (needed + needed // 2 - 1).bit_length()
        window, places = slice(self.start, self.stop), slice(0, self.num_places)
        rewards, arrivals = np.full(size, -np.inf), np.zeros(size, np.int64)
        rewards[places], arrivals[places] = self.rewards[window], self.arrivals[window]
        self.rewards, self.arrivals = rewards, arrivals
        self.trajectories = self.trajectories[window]
        self.start, self.stop = 0, self.num_places


def _token_key(trajectory: Trajectory) -> int:
    # 128 bits of the tokens stand for them, as the tokens themselves would double what the buffer holds.
    return xxhash.xxh3_128_intdigest(trajectory.response.tokens.tobytes())
