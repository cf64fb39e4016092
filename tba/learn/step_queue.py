"""Groups that wait for their step: what takes the place of the replay buffer when all data are to have one age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tba.buffer.ledger import RowLedger
from tba.buffer.sampling import Arrived
from tba.learn.exact_staleness import ExactStaleness
from tba.types import Group, Version


class StepQueue:
    """Groups by the version that made them, in order of arrival. A step takes its own; none is taken twice.

    More groups of a version may come than are due, when a Searcher died and another made its share again: those that
    come first are taken. A queue never holds more than the groups of n + 1 steps beside these.
    """

    def __init__(self, schedule: ExactStaleness) -> None:
        self.schedule = schedule
        self._waiting: dict[Version, list[Arrived]] = {}
        self._num_arrived: Counter[Version] = Counter()
        self._next_row = 0
        self.num_dropped = 0
        """Trajectories of groups that no step has taken."""
        self.ledger = RowLedger()

    def __len__(self) -> int:
        """Trajectories that wait."""
        return sum(len(group.trajectories) for groups in self._waiting.values() for _, group in groups)

    def extend(self, groups: Sequence[Group], waiting: Collection[int] | None = None) -> None:
        """One merge. Merges come as they are in the rollout log: the rows of that are counted along.

        When the log of an earlier launch is read again, only the groups that were `waiting` come in, by their rows.
        """
        for group in groups:
            if waiting is None or self._next_row in waiting:
                version = min(t.version for t in group.trajectories)
                self._waiting.setdefault(version, []).append(Arrived(self._next_row, group))
                self._num_arrived[version] += 1
            self._next_row += len(group.trajectories)
            self.ledger.arrive(group.source, self._next_row, len(group.trajectories))

    def has_groups_for(self, now: Version) -> bool:
        """Whether the step that is made on these weights can be. What no coming step takes is dropped."""
        due = self._due(now)
        for version in [version for version in self._waiting if version < due]:
            self.num_dropped += sum(len(one.group.trajectories) for one in self._waiting.pop(version))
        return len(self._waiting.get(due, [])) >= self.schedule.num_groups

    def take(self, now: Version) -> list[Arrived]:
        """The groups of the step that is made on these weights: the first of the version that is due."""
        waiting = self._waiting[self._due(now)]
        taken, waiting[:] = waiting[: self.schedule.num_groups], waiting[self.schedule.num_groups :]
        return taken

    def is_explored(self, version: Version) -> bool:
        """Whether as many groups of the version have come as are to be made of it."""
        return self._num_arrived[version] >= self.schedule.owed(version.step)

    def state(self) -> dict[str, Any]:
        """What `ExactStaleness.resumed_from` and `extend` need to go on from here, as JSON takes it."""
        waiting = [(version.step, one.row) for version, arrived in self._waiting.items() for one in arrived]
        return {"first": self.schedule.first, "waiting": waiting}

    def ledger_values(self) -> dict[str, Any]:
        """What became of all that came. Of groups that wait no more, those that no step was trained on count as
        evicted: a step takes `trainer.group_size` of a group."""
        waiting = [
            one.row + i
            for arrived in self._waiting.values()
            for one in arrived
            for i in range(len(one.group.trajectories))
        ]
        num_waiting = self.ledger.num_undrawn(np.array(waiting, np.int64))
        self.ledger.num_evicted = self.ledger.num_undrawn(np.arange(self._next_row)) - num_waiting
        return self.ledger.values(num_waiting)

    def _due(self, now: Version) -> Version:
        return Version(now.epoch, self.schedule.due(now.step))
