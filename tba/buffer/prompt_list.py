"""The trajectories of one prompt in arrival order, and the law by which they are drawn.

Equal responses are drawn by the mean of their rewards. A reward that is random, such as that of a sampled judge, would
else have its luckiest scores drawn most, and what is drawn would promise more than it holds.

Knows its own list only: which trajectory leaves when is the buffer's business, which one is drawn the sampler's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tba.buffer.gumbel import Floats, Indices, mixture_log_p
from tba.types import Prompt, Trajectory

_LOW_64_BITS = 2**64 - 1


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
        self.noise = 0.0
        """The largest difference that was seen between rewards of equal responses."""
        self._kinds: NDArray[np.uint64] = np.empty(0, np.uint64)
        """Equal numbers for equal responses."""
        self._copies: dict[int, tuple[int, float]] = {}
        """By response: how many there are, and the reward of the first that came."""
        self._scored_apart: set[int] = set()
        """Responses that have, or have had, different rewards."""
        self._tilts: Floats | None = None
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
        for place, trajectory in enumerate(trajectories, start=old):
            key = _token_key(trajectory)
            self._kinds[place] = key & _LOW_64_BITS
            count, first = self._copies.get(key, (0, trajectory.reward))
            self._copies[key] = count + 1, first
            if trajectory.reward != first:
                self._scored_apart.add(key)
                self.noise = max(self.noise, abs(trajectory.reward - first))
        self._forget_law()

    def remove_oldest(self) -> bool:
        """Take the first place away; False if it had been vacated before."""
        place, self.start = self.start, self.start + 1
        self._forget_law()
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
        count, first = self._copies[key]
        self._copies[key] = count - 1, first
        if count == 1:
            del self._copies[key]
            self._scored_apart.discard(key)
        self._forget_law()
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

    def tilts(self) -> Floats:
        """What each place from `start` to `stop` is drawn by: the mean reward of the responses here that are equal to
        its own. Minus infinity where it is vacated.

        It follows from what is here alone. Where equal responses have equal rewards it is the rewards, to the bit.
        """
        window = slice(self.start, self.stop)
        if not self._scored_apart:
            return self.rewards[window]
        if self._tilts is None:
            self._tilts = _means_of_equals(self.rewards[window], self._kinds[window])
        return self._tilts

    def log_p(self, uniform_fraction: float, inverse_temperature: float) -> Floats:
        """The log-probability of each place from `start` to `stop`: minus infinity where it is vacated."""
        return mixture_log_p(self.tilts(), uniform_fraction, inverse_temperature)

    def cumulative(self, uniform_fraction: float, inverse_temperature: float) -> Floats:
        """The probability of each place and all before it, which many draws from a long list look up.

        Summed anew after every change, so it follows from the list alone and a rebuilt buffer has the same to the bit.
        Changes come with merges: between two of them all draws use the same sums.
        """
        law = (uniform_fraction, inverse_temperature)
        if law not in self._cumulative:
            self._cumulative[law] = np.exp(self.log_p(*law)).cumsum()
        return self._cumulative[law]

    def _forget_law(self) -> None:
        self._tilts = None
        self._cumulative.clear()

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
        rewards, arrivals, kinds = np.full(size, -np.inf), np.zeros(size, np.int64), np.zeros(size, np.uint64)
        rewards[places], arrivals[places] = self.rewards[window], self.arrivals[window]
        kinds[places] = self._kinds[window]
        self.rewards, self.arrivals, self._kinds = rewards, arrivals, kinds
        self.trajectories = self.trajectories[window]
        self.start, self.stop = 0, self.num_places


def _means_of_equals(rewards: Floats, kinds: NDArray[np.uint64]) -> Floats:
    """For each reward, the mean over those of its kind; exactly the reward where these are all the same."""
    means = rewards.copy()
    live = np.flatnonzero(rewards > -np.inf)
    _, first, kind_of = np.unique(kinds[live], return_index=True, return_inverse=True)
    base = rewards[live][first][kind_of]
    excess = np.bincount(kind_of, rewards[live] - base) / np.bincount(kind_of)
    means[live] = base + excess[kind_of]
    return means


def _token_key(trajectory: Trajectory) -> int:
    # 128 bits of the tokens stand for them, as the tokens themselves would double what the buffer holds.
    return xxhash.xxh3_128_intdigest(trajectory.response.tokens.tobytes())
