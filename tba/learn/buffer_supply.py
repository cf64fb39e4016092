"""Groups from the replay buffer, at whatever age they have, up to a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tba.buffer.ledger import RowLedger
from tba.buffer.log import RolloutLog
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import Draw, draw
from tba.config.training import BufferConfig, TrainerConfig
from tba.learn.epochs import Epochs
from tba.learn.noise import NoiseWatch
from tba.runs.activity import Doing
from tba.runs.wording import counted
from tba.types import Group, Version


class BufferSupply:
    """A `Supply`: most-on-policy draws, once the buffer was filled, and while there is enough within the limit."""

    def __init__(
        self, config: TrainerConfig, buffer_config: BufferConfig, epochs: Epochs, *, reward_is_random: bool = False
    ) -> None:
        """`reward_is_random`: it is known to give equal responses different numbers."""
        self.buffer = ReplayBuffer(
            buffer_config.capacity, buffer_config.capacity_per_prompt, recent_groups=config.num_groups
        )
        self._config = config
        self._buffer_config = buffer_config
        self._epochs = epochs
        self._noise = NoiseWatch(tilt=buffer_config.tilt, declared=reward_is_random)
        self._num_merged = 0
        self._groups_by_version: Counter[Version] = Counter()

    @property
    def ledger(self) -> RowLedger:
        return self.buffer.ledger

    def extend(self, groups: Sequence[Group]) -> None:
        self.buffer.extend(groups)
        self._num_merged += len(groups)
        for group in groups:
            self._groups_by_version[min(t.version for t in group.trajectories)] += 1

    def new_events(self) -> list[dict[str, Any]]:
        message = self._noise.message(self.buffer.reward_noise)
        return [] if message is None else [{"event": "random_rewards", "message": message}]

    def has_enough(self, now: Version) -> bool:
        """The buffer was filled once, and, under a limit, as many groups as a step draws have come that are fresh."""
        if self._num_merged < self._config.first_fill:
            return False
        limit = self._config.staleness_limit
        if limit is None:
            return True
        self._evict_stale(now, limit)
        return self._num_fresh(now, limit) >= self._config.num_groups

    def lacks(self) -> Doing:
        if self._num_merged < self._config.first_fill:
            return Doing("fill", total=self._config.first_fill, unit="groups", done=self._num_merged)
        limit = self._config.staleness_limit
        assert limit is not None
        fresh = self._groups_by_version.total()
        detail = f"for groups that are at most {counted(limit, 'step')} old"
        return Doing("wait", detail, total=self._config.num_groups, unit="groups", done=fresh)

    def draw(self, now: Version, rng: np.random.Generator) -> Draw:
        return draw(
            self.buffer,
            num_groups=self._config.num_groups,
            group_size=self._config.group_size,
            recent_fraction=self._buffer_config.recent_fraction,
            uniform_fraction=self._buffer_config.uniform_fraction,
            inverse_temperature=self._buffer_config.inverse_temperature,
            rng=rng,
        )

    def is_explored(self, version: Version) -> bool:
        return True

    def values(self) -> dict[str, Any]:
        return {
            "buffer/size": len(self.buffer),
            "buffer/prompts": self.buffer.num_prompts,
            "buffer/duplicates": self.buffer.num_duplicates,
            "buffer/evicted": self.buffer.num_evicted,
        }

    def ledger_values(self) -> dict[str, Any]:
        return self.buffer.ledger_values()

    def state(self) -> dict[str, Any]:
        return {"draw_state": self.buffer.draw_state()}

    def refill(self, log: RolloutLog, state: Mapping[str, Any], now: Version) -> None:
        for groups in log.read(stop=state["log_position"]):
            self.extend(groups)
        limit = self._config.staleness_limit
        if limit is not None:
            self._evict_stale(now, limit)
        if "draw_state" in state:  # else all data had one age until here, and there was no buffer
            self.buffer.restore_draw_state(state["draw_state"])
        for groups in log.read(start=state["log_position"]):
            self.extend(groups)

    def _num_fresh(self, now: Version, limit: int) -> int:
        for version in [v for v in self._groups_by_version if self._epochs.age(v, now) > limit]:
            del self._groups_by_version[version]
        return self._groups_by_version.total()

    def _evict_stale(self, now: Version, limit: int) -> None:
        self.buffer.evict_outside(self._epochs.fresh(now, limit))
