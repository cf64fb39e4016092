"""Groups that wait for their step: what takes the place of the replay buffer when all data are to have one age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tba.buffer.ledger import RowLedger
from tba.buffer.log import RolloutLog
from tba.buffer.sampling import Arrived, Draw, draw_each_once
from tba.learn.exact_staleness import ExactStaleness
from tba.runs.activity import Doing
from tba.runs.wording import counted
from tba.types import Group, Version


class StepQueue:
    """A `Supply`: groups by the version that made them, in order of arrival. A step takes its own, none twice.

    More groups of a version may come than are due, when a Searcher died and another made its share again: those that
    come first are taken. A queue never holds more than the groups of n + 1 steps beside these.
    """

    def __init__(self, schedule: ExactStaleness, group_size: int) -> None:
        """A step draws `group_size` of the trajectories of a group."""
        self.schedule = schedule
        self._group_size = group_size
        self._waiting: dict[Version, list[Arrived]] = {}
        self._num_arrived: Counter[Version] = Counter()
        self._next_row = 0
        self.num_dropped = 0
        """Trajectories of groups that no step has taken."""
        self._ledger = RowLedger()

    def __len__(self) -> int:
        """Trajectories that wait."""
        return sum(len(group.trajectories) for groups in self._waiting.values() for _, group in groups)

    @property
    def ledger(self) -> RowLedger:
        return self._ledger

    def extend(self, groups: Sequence[Group], waiting: Collection[int] | None = None) -> None:
        """One merge; the rows of the log are counted along. When the log of an earlier launch is read again, only the
        groups that were `waiting` come in, by their rows."""
        for group in groups:
            if waiting is None or self._next_row in waiting:
                version = min(t.version for t in group.trajectories)
                self._waiting.setdefault(version, []).append(Arrived(self._next_row, group))
                self._num_arrived[version] += 1
            self._next_row += len(group.trajectories)
            self._ledger.arrive(group.source, self._next_row, len(group.trajectories))

    def new_events(self) -> list[dict[str, Any]]:
        return []

    def has_enough(self, now: Version) -> bool:
        due = self._due(now)
        for version in [version for version in self._waiting if version < due]:
            self.num_dropped += sum(len(one.group.trajectories) for one in self._waiting.pop(version))
        return len(self._waiting.get(due, [])) >= self.schedule.num_groups

    def lacks(self) -> Doing:
        return Doing("wait", f"for groups that are {counted(self.schedule.staleness, 'step')} old")

    def draw(self, now: Version, rng: np.random.Generator) -> Draw:
        return draw_each_once(self.take(now), self._group_size, rng)

    def take(self, now: Version) -> list[Arrived]:
        """The groups of the step that is made on these weights: the first of the version that is due."""
        waiting = self._waiting[self._due(now)]
        taken, waiting[:] = waiting[: self.schedule.num_groups], waiting[self.schedule.num_groups :]
        return taken

    def is_explored(self, version: Version) -> bool:
        """Whether as many groups of the version have come as are to be made of it. Searchers see the newest version
        only, so one that is replaced too early might never make them."""
        return self._num_arrived[version] >= self.schedule.owed(version.step)

    def values(self) -> dict[str, Any]:
        return {"buffer/size": len(self), "buffer/evicted": self.num_dropped}

    def state(self) -> dict[str, Any]:
        """`ExactStaleness.resumed_from` needs it, too."""
        waiting = [(version.step, one.row) for version, arrived in self._waiting.items() for one in arrived]
        return {"queue": {"first": self.schedule.first, "waiting": waiting}}

    def refill(self, log: RolloutLog, state: Mapping[str, Any], now: Version) -> None:
        """What waited for its step; nothing if ages begin anew."""
        begins_anew = self.schedule.first == now.step
        waiting = set() if begins_anew else {row for _, row in state["queue"]["waiting"]}
        for groups in log.read():
            self.extend(groups, waiting)

    def ledger_values(self) -> dict[str, Any]:
        """Of groups that wait no more, those that no step was trained on count as
        evicted: a step takes `trainer.group_size` of a group."""
        waiting = [
            one.row + i
            for arrived in self._waiting.values()
            for one in arrived
            for i in range(len(one.group.trajectories))
        ]
        num_waiting = self._ledger.num_undrawn(np.array(waiting, np.int64))
        self._ledger.num_evicted = self._ledger.num_undrawn(np.arange(self._next_row)) - num_waiting
        return self._ledger.values(num_waiting)

    def _due(self, now: Version) -> Version:
        return Version(now.epoch, self.schedule.due(now.step))
