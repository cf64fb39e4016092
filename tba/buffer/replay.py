"""The replay buffer: what is kept, and what leaves when. Drawing is in `sampling`, lasting storage in `log`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np

from tba.buffer.check import check_groups
from tba.buffer.ledger import RowLedger
from tba.buffer.prompt_list import PromptTrajectories
from tba.buffer.prompt_picker import PromptPicker
from tba.types import Group, Prompt, Steps, Trajectory, Version


class VersionSpan(NamedTuple):
    """Trajectories of one version that arrived one after the other for one prompt."""

    first: int
    stop: int
    record: PromptTrajectories

    @property
    def is_left(self) -> bool:
        return self.record.holds_before(self.stop)


class Merge(NamedTuple):
    """What came in with one call of `extend`."""

    first_arrival: int
    prompt_ids: tuple[str, ...]
    """One for each group."""


class ReplayBuffer:
    """Trajectories by prompt. Each has a place in the order of arrival; the oldest places are given up first.

    At most `capacity_per_prompt` places belong to a prompt and `capacity` to all. A trajectory that leaves early
    because it is stale keeps its place, empty, until the place's turn comes. So what the buffer holds is a function
    of the merges and of the limits given to `evict_outside`, of which the newest includes the earlier ones, not of when
    that was called: replaying the rollout log and evicting once gives the same buffer. While versions arrive in order,
    the empty places are the oldest and cost no trajectory its own.

    Five structures, each for one question. `_records`: what is there for a prompt, and what is its law? `_picker`:
    which prompt is the r-th that can be drawn? Its order follows from arrivals and removals alone, so that a draw is
    repeated exactly by a buffer that was rebuilt from the log. `_by_arrival`: whose is the oldest place, when the
    buffer is full? `_by_version`: what is stale? `_recent_merges`: what counts as recent?
    """

    def __init__(self, capacity: int, capacity_per_prompt: int, *, recent_groups: int = 1) -> None:
        """The newest merges count as recent, as few as hold `recent_groups` groups: a step's worth. Were it the last
        one only, a merge of two groups would fill a whole step with them, over and over."""
        self._capacity = capacity
        self._capacity_per_prompt = capacity_per_prompt
        self._min_recent_groups = recent_groups
        self._records: dict[str, PromptTrajectories] = {}
        self._picker = PromptPicker()
        # Every run is in both. One that has left is dropped when it comes up, or when such runs prevail.
        self._by_arrival: deque[VersionSpan] = deque()
        self._by_version: dict[Version, list[VersionSpan]] = {}
        self._num_runs = 0
        self._num_places = 0
        self._num_distinct = 0
        self._next_arrival = 0
        self._recent_merges: deque[Merge] = deque()
        self._recent_prompts: list[str] = []
        self._recent_queue: list[str] = []
        self._fresh: dict[int, Steps] = {}
        self.ledger = RowLedger()
        """What became of every trajectory. Whoever trains on a draw tells it."""
        self.reward_noise = 0.0
        """The largest difference that was seen between rewards of equal responses to one prompt."""
        self.num_added = 0
        self.num_evicted = 0
        """Trajectories that left for want of room."""
        self.num_evicted_stale = 0
        """Trajectories that left, or were not let in, because of `evict_outside`."""

    def __len__(self) -> int:
        return self.num_added - self.num_evicted - self.num_evicted_stale

    @property
    def num_prompts(self) -> int:
        return self._picker.num_marked

    @property
    def num_duplicates(self) -> int:
        """Trajectories that repeat the tokens of another one for the same prompt. They are kept: the frequency with
        which a response was generated is part of what the data say."""
        return len(self) - self._num_distinct

    @property
    def recent_arrival(self) -> int:
        """Arrival number of the first recent trajectory. Numbers count all trajectories ever added."""
        return self._recent_merges[0].first_arrival if self._recent_merges else 0

    def ledger_values(self) -> dict[str, Any]:
        """What became of every trajectory, as a record has it. Looks at all that is there: for the end of a run."""
        held = [r.arrivals[r.start : r.stop][r.rewards[r.start : r.stop] > -np.inf] for r in self._records.values()]
        return self.ledger.values(sum(map(self.ledger.num_undrawn, held)))

    def trajectories(self, prompt_id: str) -> list[Trajectory]:
        """Those of one prompt, oldest first."""
        record = self._records.get(prompt_id)
        return [] if record is None else [t for t in record.trajectories if t is not None]

    def extend(self, groups: Sequence[Group]) -> None:
        """One merge: these trajectories are recent ones now. No groups leave everything as it was.

        Room is made after the whole merge has come in, first within each prompt, then in all. Rewards must be finite
        and groups must not be empty, else ValueError, and nothing has changed.
        """
        check_groups(groups)
        if not groups:
            return
        self._recent_merges.append(Merge(self._next_arrival, tuple(group.prompt.id for group in groups)))
        for group in groups:
            self._append(group)
        while self._num_places > self._capacity:
            self._remove_globally_oldest()
        self._evict_stale()
        self._drop_runs_that_left()
        self._forget_older_merges()

    def evict_outside(self, fresh: Mapping[int, Steps]) -> int:
        """Let every trajectory go whose version is of another step than these of its epoch, now and when it arrives
        later; how many went now. Epochs that are not named stay whole. What was stale once stays so."""
        for epoch, steps in fresh.items():
            self._fresh[epoch] = steps.within(self._fresh[epoch]) if epoch in self._fresh else steps
        before = self.num_evicted_stale
        self._evict_stale()
        return self.num_evicted_stale - before

    def pick_prompt(self, rng: np.random.Generator) -> PromptTrajectories:
        """Any prompt with a trajectory, each as likely. The buffer must not be empty."""
        return self._picker.pick(int(rng.integers(self.num_prompts)))

    def pick_recent_prompt(self, rng: np.random.Generator) -> PromptTrajectories | None:
        """The next of a shuffled round of the recent prompts; None if nothing recent is left."""
        while True:
            while self._recent_queue:
                prompt_id = self._recent_queue.pop()
                if self._has_recent(prompt_id):
                    return self._records[prompt_id]
            self._recent_prompts = [i for i in self._recent_prompts if self._has_recent(i)]
            if not self._recent_prompts:
                return None
            self._recent_queue = [self._recent_prompts[i] for i in rng.permutation(len(self._recent_prompts))]

    def draw_state(self) -> dict[str, Any]:
        """What draws depend on besides the merges, as JSON takes it."""
        return {
            "recent_queue": list(self._recent_queue),
            "fresh": [[epoch, *steps] for epoch, steps in self._fresh.items()],
            "num_evicted": self.num_evicted,
            "num_evicted_stale": self.num_evicted_stale,
            "num_evicted_undrawn": self.ledger.num_evicted,
        }

    def restore_draw_state(self, state: Mapping[str, Any]) -> None:
        """Take over another buffer's `draw_state` after its merges were repeated on this one: draws then go on as
        they would have on the other, bit for bit."""
        if "fresh" in state:
            self.evict_outside({epoch: Steps(*steps) for epoch, *steps in state["fresh"]})
        elif state["oldest_version"] is not None:  # of tba 0.1
            self.evict_outside({0: Steps(state["oldest_version"], None)})
        self._recent_queue = list(state["recent_queue"])
        # The two reasons to leave overlap, so a repeated history may count them apart differently. Their sum is what it
        # is here: a limit may have been applied since, and what it took away counts too.
        num_left = self.num_evicted + self.num_evicted_stale
        self.num_evicted = state["num_evicted"]
        self.num_evicted_stale = num_left - self.num_evicted
        if "num_evicted_undrawn" in state:
            self.ledger.split_undrawn(state["num_evicted_undrawn"])

    def _append(self, group: Group) -> None:
        record = self._record_of(group.prompt)
        num_distinct = record.num_distinct
        record.append(group.trajectories, self._next_arrival)
        self.reward_noise = max(self.reward_noise, record.noise)
        self._num_distinct += record.num_distinct - num_distinct
        self._picker.mark(record, True)
        for version, same in groupby(t.version for t in group.trajectories):
            first = self._next_arrival
            self._next_arrival += sum(1 for _ in same)
            run = VersionSpan(first, self._next_arrival, record)
            self._by_arrival.append(run)
            self._by_version.setdefault(version, []).append(run)
            self._num_runs += 1
        self.ledger.arrive(group.source, self._next_arrival, len(group.trajectories))
        self.num_added += len(group.trajectories)
        self._num_places += len(group.trajectories)
        while record.num_places > self._capacity_per_prompt:
            self._remove_oldest(record)

    def _forget_older_merges(self) -> None:
        merges = self._recent_merges
        num_groups = sum(len(merge.prompt_ids) for merge in merges)
        while num_groups - len(merges[0].prompt_ids) >= self._min_recent_groups:
            num_groups -= len(merges.popleft().prompt_ids)
        self._recent_prompts = list(dict.fromkeys(chain.from_iterable(merge.prompt_ids for merge in merges)))
        self._recent_queue = []

    def _record_of(self, prompt: Prompt) -> PromptTrajectories:
        record = self._records.get(prompt.id)
        if record is None:
            record = self._records[prompt.id] = PromptTrajectories(prompt)
            self._picker.add(record)
        return record

    def _remove_globally_oldest(self) -> None:
        while not self._by_arrival[0].is_left:
            self._by_arrival.popleft()
        self._remove_oldest(self._by_arrival[0].record)

    def _remove_oldest(self, record: PromptTrajectories) -> None:
        num_distinct = record.num_distinct
        row = int(record.arrivals[record.start])
        if record.remove_oldest():
            self.num_evicted += 1
            self.ledger.leave(row, stale=False)
        self._num_places -= 1
        self._after_removal(record, num_distinct)
        if not record.num_places:
            self._picker.remove(record)
            del self._records[record.prompt.id]

    def _evict_stale(self) -> None:
        # There are few versions where there is a limit: each look takes the stale ones away.
        for version in [v for v in self._by_version if v.epoch in self._fresh]:
            if not self._fresh[version.epoch].includes(version.step):
                runs = self._by_version.pop(version)
                self._num_runs -= len(runs)
                for run in runs:
                    self._vacate(run)

    def _vacate(self, run: VersionSpan) -> None:
        record = run.record
        if not run.is_left:
            return
        num_distinct = record.num_distinct
        for place in range(record.first_place_since(run.first), record.first_place_since(run.stop)):
            if record.vacate(place):
                self.num_evicted_stale += 1
                self.ledger.leave(int(record.arrivals[place]), stale=True)
        self._after_removal(record, num_distinct)

    def _after_removal(self, record: PromptTrajectories, num_distinct: int) -> None:
        self._num_distinct += record.num_distinct - num_distinct
        if not record.num_live:
            self._picker.mark(record, False)

    def _has_recent(self, prompt_id: str) -> bool:
        record = self._records.get(prompt_id)
        return record is not None and len(record.live_places(record.first_place_since(self.recent_arrival))) > 0

    def _drop_runs_that_left(self) -> None:
        # Twice as many as there are places: then half of the work at least is for runs that left.
        limit = 2 * self._num_places + 64
        if len(self._by_arrival) > limit:
            self._by_arrival = deque(run for run in self._by_arrival if run.is_left)
        if self._num_runs > limit:
            left = {version: [run for run in runs if run.is_left] for version, runs in self._by_version.items()}
            self._by_version = {version: runs for version, runs in left.items() if runs}
            self._num_runs = sum(map(len, self._by_version.values()))
