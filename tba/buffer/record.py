"""The trajectories of one prompt in arrival order, and what drawing from a long list needs to know of it.

Knows its own list only: which trajectory leaves when is the buffer's business, which one is drawn the sampler's.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import xxhash
from numpy.typing import NDArray

from tba.buffer.gumbel import Floats, Indices, log_mixture, log_sum_exp
from tba.types import Prompt, Trajectory

BLOCK_SIZE = 64
"""Places in a block: what a draw from a long list looks into, once for each trajectory drawn."""


class PromptRecord:
    """A first-in first-out list of places, each with a trajectory or vacated before its turn.

    Places are indices into `trajectories`, `rewards` and `arrivals`, from `start` to `stop`. A vacated place, and any
    outside of these, has no trajectory and the reward minus infinity. Indices hold until the next `append`. How
    places lie in memory follows from the appends and the removals at the front alone, not from what was vacated.
    """

    def __init__(self, prompt: Prompt, block_size: int = BLOCK_SIZE) -> None:
        self.prompt = prompt
        self.block_size = block_size
        self.trajectories: list[Trajectory | None] = []
        self.rewards: Floats = np.empty(0)
        self.arrivals: NDArray[np.int64] = np.empty(0, np.int64)
        self.start = self.stop = self.num_live = 0
        self._copies: dict[int, int] = {}
        self._sums: BlockSums | None = None

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
        if self._sums is not None:
            self._sums.touch(old, self.stop)

    def remove_oldest(self) -> bool:
        """Take the first place away; False if it had been vacated before."""
        place, self.start = self.start, self.start + 1
        if self._sums is not None:
            self._sums.touch(place, place + 1)
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
        if self._sums is not None:
            self._sums.touch(place, place + 1)
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

    def sums(self, inverse_temperature: float) -> BlockSums:
        """Up-to-date sums over the blocks; only blocks changed since the last call are summed again."""
        if self._sums is None or self._sums.inverse_temperature != inverse_temperature:
            self._sums = BlockSums(len(self.rewards), self.block_size, inverse_temperature)
        self._sums.refresh(self)
        return self._sums

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
        self._sums = None


class BlockSums:
    """Log-sum-exp of inverse temperature x reward over each block of a record's places, kept between draws."""

    def __init__(self, num_places: int, block_size: int, inverse_temperature: float) -> None:
        num_blocks = num_places // block_size
        self.inverse_temperature = inverse_temperature
        self._block_size = block_size
        self._occupied = slice(0, 0)
        self._log_sums: Floats = np.full(num_blocks, -np.inf)
        self._num_live: NDArray[np.int64] = np.zeros(num_blocks, np.int64)
        self._changed: NDArray[np.bool_] = np.ones(num_blocks, np.bool_)
        self._any_changed = True
        self._rewards: Floats = np.empty((0, block_size))
        self._shares: Floats = np.zeros((num_blocks, block_size))
        self._cumulative: Floats = np.empty(0)
        self._places = range(0)
        self._log_total = self._total_live = 0.0
        self._log_masses: dict[float, Floats] = {}

    def touch(self, first: int, stop: int) -> None:
        """Places from `first` up to `stop` have changed."""
        self._changed[first // self._block_size : (stop - 1) // self._block_size + 1] = True
        self._any_changed = True

    def refresh(self, record: PromptRecord) -> None:
        if not self._any_changed:
            return
        self._rewards = record.rewards.reshape(-1, self._block_size)
        changed = np.flatnonzero(self._changed)
        rewards = self._rewards[changed]
        weights = log_weights(rewards, self.inverse_temperature)
        self._log_sums[changed] = sums = log_sum_exp(weights)
        sums[np.isneginf(sums)] = 0.0  # nothing in the block: its shares are zeros
        self._shares[changed] = np.exp(weights - sums[:, None]).cumsum(axis=1)
        self._num_live[changed] = (rewards > -np.inf).sum(axis=1)
        self._changed[:] = False
        self._any_changed = False
        self._log_masses.clear()
        self._occupied = slice(record.start // self._block_size, (record.stop - 1) // self._block_size + 1)
        self._log_total = float(log_sum_exp(self._log_sums[self._occupied]))
        self._total_live = record.num_live
        self._cumulative = np.exp(self._log_sums[self._occupied] - self._log_total).cumsum()
        self._places = range(record.start, record.stop)

    def candidates(self, count: int, uniform_fraction: float, rng: np.random.Generator) -> Indices:
        """Independent draws from the mixture, in constant time each; -1 for a vacated place, which is no draw."""
        kind, first, second = rng.random((3, count))
        anywhere = self._places.start + (first * len(self._places)).astype(np.intp)
        block = self._cumulative.searchsorted(first * self._cumulative[-1], side="right")
        block = self.first_block + np.minimum(block, len(self._cumulative) - 1)
        shares = self._shares[block]
        within = (shares <= second[:, None] * shares[:, -1:]).sum(axis=1)
        by_reward = block * self._block_size + np.minimum(within, self._block_size - 1)
        chosen: Indices = np.where(kind < uniform_fraction, anywhere, by_reward)
        return np.where(self._rewards.reshape(-1)[chosen] > -np.inf, chosen, -1)

    def without(self, places: Indices) -> BlockSums:
        """The same probabilities for all other places, not normalised anew."""
        left = copy.copy(self)
        blocks, counts = np.unique(places // self._block_size, return_counts=True)
        left._rewards = self._rewards.copy()
        left._rewards.reshape(-1)[places] = -np.inf
        left._log_sums, left._num_live, left._log_masses = self._log_sums.copy(), self._num_live.copy(), {}
        left._log_sums[blocks] = log_sum_exp(log_weights(left._rewards[blocks], self.inverse_temperature))
        left._num_live[blocks] -= counts
        return left

    @property
    def first_block(self) -> int:
        return int(self._occupied.start)

    def log_masses(self, uniform_fraction: float) -> Floats:
        """Log-probability of each occupied block, the first of which is `first_block`."""
        if uniform_fraction not in self._log_masses:
            log_softmax = self._log_sums[self._occupied] - self._log_total
            uniform = self._num_live[self._occupied] / self._total_live
            self._log_masses[uniform_fraction] = log_mixture(log_softmax, uniform, uniform_fraction)
        return self._log_masses[uniform_fraction]

    def log_p(self, blocks: Indices, uniform_fraction: float) -> Floats:
        """Log-probability of each place of these blocks, counted from `first_block`."""
        rewards = self._rewards[self.first_block + blocks]
        log_softmax = log_weights(rewards, self.inverse_temperature) - self._log_total
        return log_mixture(log_softmax, (rewards > -np.inf) / self._total_live, uniform_fraction)


def log_weights(rewards: Floats, inverse_temperature: float) -> Floats:
    """Inverse temperature x reward, where minus infinity means no trajectory at any temperature."""
    if inverse_temperature == 0:
        return np.where(rewards > -np.inf, 0.0, -np.inf)
    return rewards * inverse_temperature


def _token_key(trajectory: Trajectory) -> int:
    # 128 bits of the tokens stand for them, as the tokens themselves would double what the buffer holds.
    return xxhash.xxh3_128_intdigest(trajectory.response.tokens.tobytes())
