"""The schedule of exact ages, the queue that keeps it, and the draws from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_cases import GROUP_SIZE, random_groups, trainer_in

from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import Arrived, draw, draw_each_once
from tba.channels.base import Message
from tba.channels.inline import InlineGroups, InlineWeights
from tba.config.training import TrainerConfig
from tba.learn.checkpoint import Checkpoint, list_checkpoints, save_checkpoint
from tba.learn.exact_staleness import ExactStaleness
from tba.learn.step_queue import StepQueue
from tba.learn.trainer import Trainer
from tba.runs.metrics import read_metrics
from tba.testing import save_tiny_model
from tba.types import Version

schedules = st.builds(
    ExactStaleness, staleness=st.integers(0, 6), num_groups=st.integers(1, 4), num_steps=st.integers(1, 12)
)


def test_the_schedule_by_hand() -> None:
    schedule = ExactStaleness(staleness=2, num_groups=5, num_steps=7)
    assert [schedule.due(made) for made in range(7)] == [0, 0, 0, 1, 2, 3, 4]
    assert [schedule.owed(version) for version in range(7)] == [15, 5, 5, 5, 5, 0, 0]
    anew = replace(schedule, first=3)
    assert [anew.due(made) for made in range(3, 7)] == [3, 3, 3, 4]
    assert [anew.owed(version) for version in range(3, 7)] == [15, 5, 0, 0]


@given(schedules, st.integers(0, 12))
def test_every_step_has_its_own_groups_of_its_age(schedule: ExactStaleness, first: int) -> None:
    schedule = replace(schedule, first=min(first, schedule.num_steps))
    made = range(schedule.first, schedule.num_steps)
    assert [n - schedule.due(n) for n in made] == [min(schedule.staleness, n - schedule.first) for n in made]
    used = Counter(schedule.due(n) for n in made)
    assert {v: schedule.owed(v) for v in made} == {v: schedule.num_groups * used[v] for v in made}


@given(schedules, st.integers(0, 12))
def test_a_run_that_goes_on_misses_nothing_and_one_with_a_group_less_does(
    schedule: ExactStaleness, num_made: int
) -> None:
    """As a queue is after so many steps, once all versions before the newest have been explored."""
    num_made = min(num_made, schedule.num_steps)
    made = Counter({version: schedule.owed(version) for version in range(num_made)})
    taken = Counter(schedule.due(n) for n in range(num_made) for _ in range(schedule.num_groups))
    waiting = made - taken
    assert not schedule.missing(num_made, waiting)
    for version in waiting:
        assert schedule.missing(num_made, waiting - Counter([version])) == Counter([version])


def queue_of(**settings: int) -> StepQueue:
    return StepQueue(ExactStaleness(**{"staleness": 1, "num_groups": 2, "num_steps": 9, **settings}), 4)


def serials(taken: list[Arrived]) -> list[int]:
    return [one.group.serial for one in taken]


def test_a_step_takes_the_first_groups_of_the_version_that_is_due() -> None:
    queue = queue_of()
    queue.extend(random_groups(3))
    assert queue.has_enough(Version(0, 0))
    assert not queue.is_explored(Version(0, 0)), "the first version makes two steps' groups"
    assert serials(queue.take(Version(0, 0))) == [1, 2]
    assert not queue.has_enough(Version(0, 1)), "one group is left"
    queue.extend([replace(group, serial=10 + group.serial) for group in random_groups(2, version=1)])
    queue.extend([replace(group, serial=20 + group.serial) for group in random_groups(2)])
    assert queue.is_explored(Version(0, 0))
    assert queue.is_explored(Version(0, 1))
    assert queue.has_enough(Version(0, 1))
    taken = queue.take(Version(0, 1))
    assert serials(taken) == [3, 21]
    assert [one.row for one in taken] == [2 * GROUP_SIZE, 5 * GROUP_SIZE], "rows count everything that came"
    assert len(queue) == 3 * GROUP_SIZE
    assert queue.has_enough(Version(0, 2))
    assert serials(queue.take(Version(0, 2))) == [11, 12]
    assert queue.num_dropped == GROUP_SIZE, "a group of version 0 that was one too many"


def test_groups_of_an_abandoned_epoch_are_never_taken() -> None:
    queue = queue_of(first=4)
    queue.extend(random_groups(4, version=Version(0, 4)))
    assert not queue.has_enough(Version(1, 4))
    assert len(queue) == 0
    queue.extend(random_groups(2, version=Version(1, 4)))
    assert queue.has_enough(Version(1, 4))


def test_a_queue_is_filled_again_from_the_log() -> None:
    merges = [random_groups(4), random_groups(2, version=1), random_groups(2, version=2)]
    queue = queue_of()
    for merge in merges:
        queue.extend(merge)
    queue.take(Version(0, 0))
    state = queue.state()["queue"]
    again = queue_of()
    for merge in merges:
        again.extend(merge, {row for _, row in state["waiting"]})
    for step in (1, 2, 3):
        one, other = queue.take(Version(0, step)), again.take(Version(0, step))
        assert [x.row for x in one] == [x.row for x in other]
        assert [x.group for x in one] == [x.group for x in other]


# ---------------------------------------------------------------------------------------------------------------------
# In the Trainer
# ---------------------------------------------------------------------------------------------------------------------


class Slow(InlineGroups):
    """A Searcher that makes one group each time it is waited for, with the newest weights, up to what it owes of them.
    At one moment it is killed, and what takes its place makes its share again."""

    def __init__(self, trainer: Trainer, killed_at: int, stop_at: int = -1) -> None:
        super().__init__()
        assert isinstance(trainer.weights, InlineWeights)
        assert isinstance(trainer.supply, StepQueue)
        self._trainer, self._weights, self._owed = trainer, trainer.weights, trainer.supply.schedule.owed
        self._killed_at, self._stop_at = killed_at, stop_at
        self._version, self._num_made, self.num_sent = Version(-1, -1), 0, 0
        self._num_waits = 0
        self.explored: Counter[int] = Counter()

    def receive(self, wait: bool = False) -> list[Message]:
        if wait:
            self._num_waits += 1
            assert self._num_waits < 100, "it waits for groups that nobody makes any more"
            update = self._weights.newer_than(self._version)
            if update is not None:
                self._version, self._num_made = update.version, 0
            if self._num_made < self._owed(self._version.step):
                [group] = random_groups(1, version=self._version, seed=self.num_sent)
                self._num_made += 1
                self.num_sent += 1
                self.explored[self._version.step] += 1
                self.send(replace(group, serial=self.num_sent))
            if self.num_sent == self._killed_at:
                self._killed_at, self._num_made = -1, 0
            self._trainer.stop_requested |= self.num_sent == self._stop_at
        return super().receive(wait)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("killed_at", [-1, 3, 9])
def test_no_version_is_replaced_before_it_has_made_its_groups(tmp_path: Path, folder: str, killed_at: int) -> None:
    """The Trainer could go on at once with what it has; a Searcher would then never see some of the versions."""
    trainer = trainer_in(tmp_path / "run", folder, staleness=2, num_steps=6)
    trainer.groups = searcher = Slow(trainer, killed_at)
    trainer.run()
    trained = [record for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert [record["staleness/counts"] for record in trained] == [
        {str(age): 2 * GROUP_SIZE} for age in (0, 1, 2, 2, 2, 2)
    ]
    assert all(searcher.explored[version] >= owed for version, owed in {0: 6, 1: 2, 2: 2, 3: 2}.items())
    assert searcher.explored.total() <= 12 + max(0, killed_at) // 2


def test_a_stop_while_it_waits_for_a_version_to_be_explored_saves_and_ends(tmp_path: Path, folder: str) -> None:
    trainer = trainer_in(tmp_path / "run", folder, staleness=2, num_steps=6)
    trainer.groups = Slow(trainer, killed_at=-1, stop_at=4)
    trainer.run()
    assert trainer.step == 1
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run")] == [1]


# ---------------------------------------------------------------------------------------------------------------------
# Where ages are counted from
# ---------------------------------------------------------------------------------------------------------------------


def checkpoint_in(run: Path, queue: StepQueue | None, step: int) -> Checkpoint:
    state: dict[str, Any] = {"step": step} | ({} if queue is None else queue.state())
    return save_checkpoint(run, step, save=lambda folder: None, state=state, keep_last=1)


def test_ages_go_on_where_the_groups_wait_and_begin_anew_elsewhere(tmp_path: Path) -> None:
    schedule = ExactStaleness(staleness=2, num_groups=2, num_steps=9)
    queue = StepQueue(schedule, 4)
    for version in (1, 2):  # what waits after step 3
        queue.extend(random_groups(2, version=version))
    saved = checkpoint_in(tmp_path / "run", queue, 3)

    def first(checkpoint: Checkpoint = saved, *, repeatable: bool = True, **changes: int) -> int:
        return replace(schedule, **changes).resumed_from(checkpoint, repeatable=repeatable).first

    assert first() == 0
    assert first(staleness=1) == 0
    assert first(num_groups=1) == 0
    assert first(staleness=3) == 3, "version 0 has no groups left for a step at age 3"
    assert first(num_groups=3) == 3
    assert first(repeatable=False) == 3
    assert first(checkpoint_in(tmp_path / "other", None, 3)) == 3, "a run without exact ages"


# ---------------------------------------------------------------------------------------------------------------------
# Draws
# ---------------------------------------------------------------------------------------------------------------------


def arrived(count: int) -> list[Arrived]:
    return [Arrived(GROUP_SIZE * i, group) for i, group in enumerate(random_groups(count))]


@given(st.integers(1, 6), st.integers(2, GROUP_SIZE + 2), st.integers(0, 99))
def test_each_group_is_drawn_once_with_as_many_of_its_trajectories(count: int, size: int, seed: int) -> None:
    """Different ones, unless there are too few."""
    groups = arrived(count)
    drawn = draw_each_once(groups, size, np.random.default_rng(seed))
    by_row = {one.row + j: t for one in groups for j, t in enumerate(one.group.trajectories)}
    assert sorted(group.prompt.id for group in drawn.groups) == [str(i) for i in range(count)]
    for group, rows in zip(drawn.groups, drawn.rows, strict=True):
        assert list(group.trajectories) == [by_row[row] for row in rows]
        assert len(rows) == size
        assert size > GROUP_SIZE or len(set(rows)) == size


@pytest.mark.parametrize("size", [2, GROUP_SIZE])
def test_it_is_what_is_drawn_of_recent_groups(size: int) -> None:
    groups = arrived(5)
    buffer = ReplayBuffer(1_000, 100, recent_groups=5)
    buffer.extend([one.group for one in groups])
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    law = {"recent_fraction": 1.0, "uniform_fraction": 0.5, "inverse_temperature": 1.0}
    expected = draw(buffer, num_groups=5, group_size=size, rng=one, **law)
    assert draw_each_once(groups, size, other) == expected
    assert one.bit_generator.state == other.bit_generator.state


# ---------------------------------------------------------------------------------------------------------------------
# Early syncs
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("period", "expected"),
    [(1, [1, 2, 3, 4, 5]), (2, [1, 2, 4, 6, 8]), (5, [1, 2, 4, 5, 10, 15]), (8, [1, 2, 4, 8, 16, 24])],
)
def test_early_syncs_grow_up_to_the_period(period: int, expected: list[int]) -> None:
    config = TrainerConfig(sync_period=period, early_syncs=True)
    found = [step for step in range(1, expected[-1] + 1) if config.syncs_after(step)]
    assert found == expected
    assert [config.steps_to_sync(step) for step in [0, *found[:-1]]] == np.diff([0, *found]).tolist()


def test_without_them_every_period_is_the_same() -> None:
    config = TrainerConfig(sync_period=4)
    assert [step for step in range(13) if config.syncs_after(step)] == [0, 4, 8, 12]
    assert {config.steps_to_sync(step) for step in range(13)} == {4}


def test_exact_ages_publish_every_step() -> None:
    config = TrainerConfig(sync_period=4, staleness=3)
    assert all(config.syncs_after(step) for step in range(9))
