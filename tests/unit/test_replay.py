from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from buffer_cases import evict_before, group, rewarded, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tba.buffer.prompt_list import PromptTrajectories
from tba.buffer.prompt_picker import PromptPicker
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.types import Group, Prompt, Steps, Trajectory, Version


def rewards_of(buffer: ReplayBuffer, prompt_id: str) -> list[float]:
    return [t.reward for t in buffer.trajectories(prompt_id)]


def test_a_prompt_keeps_its_newest() -> None:
    buffer = ReplayBuffer(100, 3)
    buffer.extend([rewarded("a", [1, 2]), rewarded("b", [9]), rewarded("a", [3, 4])])
    assert rewards_of(buffer, "a") == [2, 3, 4]
    assert rewards_of(buffer, "b") == [9]
    assert (len(buffer), buffer.num_prompts, buffer.num_added, buffer.num_evicted) == (4, 2, 5, 1)


def test_the_oldest_of_all_leaves_whatever_its_prompt() -> None:
    buffer = ReplayBuffer(4, 3)
    buffer.extend([rewarded("a", [1]), rewarded("b", [2, 3])])
    buffer.extend([rewarded("c", [4, 5])])
    assert (rewards_of(buffer, "a"), rewards_of(buffer, "b"), buffer.num_prompts) == ([], [2, 3], 2)
    buffer.extend([rewarded("b", [6, 7])])
    assert (rewards_of(buffer, "b"), rewards_of(buffer, "c")) == ([6, 7], [4, 5])


def test_room_within_prompts_is_made_first() -> None:
    buffer = ReplayBuffer(4, 2)
    buffer.extend([rewarded("old", [0]), rewarded("a", [1, 2])])
    buffer.extend([rewarded("a", [3, 4])])
    assert rewards_of(buffer, "old") == [0]


def test_a_merge_beyond_all_capacity_leaves_its_end() -> None:
    buffer = ReplayBuffer(3, 2)
    buffer.extend([rewarded("a", range(5)), rewarded("b", range(10, 15))])
    assert (rewards_of(buffer, "a"), rewards_of(buffer, "b")) == ([4], [13, 14])


def test_duplicates_are_kept_and_counted() -> None:
    buffer = ReplayBuffer(100, 4)
    same, other = trajectory(tokens=(7, 7)), trajectory(tokens=(8, 8))
    buffer.extend([group("a", [same, same, other]), group("b", [same])])
    assert (len(buffer), buffer.num_duplicates) == (4, 1)
    buffer.extend([group("a", [same, other])])
    assert (len(buffer), buffer.num_duplicates) == (5, 2)
    buffer.extend([group("a", [trajectory(tokens=(9, i)) for i in range(4)])])
    assert buffer.num_duplicates == 0


def test_eviction_by_version_is_exact_out_of_order() -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([group("a", [trajectory(reward=v, version=v) for v in (5, 1, 4, 1, 3)]), rewarded("b", [0], 0)])
    assert evict_before(buffer, 4) == 4
    assert (rewards_of(buffer, "a"), buffer.num_prompts, buffer.num_evicted_stale) == ([5, 4], 1, 4)
    assert evict_before(buffer, 2) == 0


def test_a_trajectory_that_arrives_too_late_is_stale_at_once() -> None:
    buffer = ReplayBuffer(100, 100)
    evict_before(buffer, 3)
    buffer.extend([group("a", [trajectory(version=2), trajectory(version=3)])])
    assert (len(buffer), buffer.num_evicted_stale) == (1, 1)


def test_data_of_an_abandoned_epoch_leave_from_both_ends() -> None:
    """Beyond the fork, the higher steps are farther away."""
    buffer = ReplayBuffer(100, 100)
    buffer.extend([group("a", [trajectory(reward=v, version=v) for v in range(10)]), rewarded("b", [7], Version(1, 5))])
    assert buffer.evict_outside({0: Steps(3, 6), 1: Steps(3, None)}) == 6
    assert (rewards_of(buffer, "a"), rewards_of(buffer, "b")) == ([3, 4, 5, 6], [7])


@pytest.mark.parametrize("state", [{"oldest_version": 4}, {"fresh": [[0, 4, None]]}, {"fresh": [[0, 4, 9], [1, 0, 2]]}])
def test_the_limits_of_a_checkpoint_are_read(state: dict[str, Any]) -> None:
    """tba 0.1 wrote one number, which is a step of epoch 0."""
    buffer = ReplayBuffer(100, 100)
    buffer.extend([group("a", [trajectory(reward=v, version=v) for v in range(6)])])
    buffer.restore_draw_state({"recent_queue": [], "num_evicted": 0, "num_evicted_stale": 4, **state})
    assert rewards_of(buffer, "a") == [4, 5]
    assert len(buffer) == 2
    buffer.restore_draw_state({"recent_queue": [], "num_evicted": 0, "num_evicted_stale": 4, "oldest_version": None})
    assert rewards_of(buffer, "a") == [4, 5]


def test_stale_places_cost_nothing_while_versions_arrive_in_order() -> None:
    buffer = ReplayBuffer(4, 4)
    buffer.extend([rewarded("a", [1, 2], version=0), rewarded("b", [3, 4], version=1)])
    evict_before(buffer, 1)
    buffer.extend([rewarded("c", [5, 6], version=2)])
    assert (rewards_of(buffer, "b"), rewards_of(buffer, "c")) == ([3, 4], [5, 6])


def not_written() -> Trajectory:
    """A response of which the policy wrote nothing."""
    made = trajectory()
    return replace(made, response=replace(made.response, token_versions=((None, len(made.response)),)))


@pytest.mark.parametrize(
    "bad", [rewarded("a", [math.nan]), rewarded("a", [math.inf]), group("a", []), group("a", [not_written()])]
)
def test_what_cannot_be_drawn_is_refused_whole(bad: Group) -> None:
    buffer = ReplayBuffer(100, 100)
    with pytest.raises(ValueError):
        buffer.extend([rewarded("b", [1.0]), bad])
    assert (len(buffer), buffer.num_added, buffer.num_prompts) == (0, 0, 0)


def test_queues_stay_bounded() -> None:
    buffer = ReplayBuffer(1_000, 4)
    buffer.extend([rewarded("old", [0.0])])
    for _ in range(2_000):
        buffer.extend([rewarded("a", [1.0])])
    assert len(buffer._by_arrival) < 100
    assert sum(map(len, buffer._by_version.values())) == buffer._num_runs < 100
    assert len(buffer.trajectories("a")) == 4


def test_one_prompt_may_hold_very_many() -> None:
    buffer = ReplayBuffer(1_000_000, 100_000)
    shared = trajectory()
    for _ in range(15):
        buffer.extend([group("a", [shared] * 10_000)])
    assert (len(buffer), buffer.num_duplicates, buffer.num_evicted) == (100_000, 99_999, 50_000)


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "mark", "unmark"]), st.integers(0, 20)), max_size=80))
def test_slots_find_the_record_of_a_rank(calls: list[tuple[str, int]]) -> None:
    picker, order, marked = PromptPicker(), list[PromptTrajectories](), set[str]()
    for call, number in calls:
        if call == "add" and all(record.prompt.id != str(number) for record in order):
            order.append(PromptTrajectories(Prompt(str(number), "", ())))
            picker.add(order[-1])
        elif call == "remove" and order:
            record = order[number % len(order)]
            picker.remove(record)
            marked.discard(record.prompt.id)
            order[number % len(order)] = order[-1]
            order.pop()
        elif call in ("mark", "unmark") and order:
            record = order[number % len(order)]
            picker.mark(record, call == "mark")
            (marked.add if call == "mark" else marked.discard)(record.prompt.id)
        expected = [record for record in order if record.prompt.id in marked]
        assert picker.num_marked == len(expected)
        assert [picker.pick(rank) for rank in range(len(expected))] == expected


@dataclass
class Place:
    prompt_id: str
    trajectory: Trajectory
    merge: int
    is_live: bool = True


class BufferMatchesModel(RuleBasedStateMachine):
    """Any sequence of merges, evictions and draws, against one plain list of places."""

    recent_groups = 1

    def __init__(self) -> None:
        super().__init__()
        self.capacity, self.capacity_per_prompt = 40, 15
        self.buffer = ReplayBuffer(self.capacity, self.capacity_per_prompt, recent_groups=self.recent_groups)
        self.places: list[Place] = []
        self.merge_sizes: list[int] = []
        self.limits: list[dict[int, Steps]] = []
        self.rng = np.random.default_rng(0)

    @rule(data=st.lists(st.tuples(st.sampled_from("abcdef"), st.lists(st.integers(0, 19), min_size=1, max_size=6))))
    def extend(self, data: list[tuple[str, list[int]]]) -> None:
        # Versions 0 to 9 of epoch 0, 10 to 19 of epoch 1.
        groups = [
            group(name, [trajectory(v / 2, Version(*divmod(v, 10)), (v // 3,)) for v in versions])
            for name, versions in data
        ]
        self.buffer.extend(groups)
        if groups:
            self.merge_sizes.append(len(groups))
        self.places += [Place(g.prompt.id, t, len(self.merge_sizes)) for g in groups for t in g.trajectories]
        for name in "abcdef":
            for place in [p for p in self.places if p.prompt_id == name][: -self.capacity_per_prompt]:
                self.places.remove(place)
        del self.places[: -self.capacity]
        self._vacate()

    @rule(fresh=st.dictionaries(st.integers(0, 1), st.builds(Steps, st.integers(0, 9), st.none() | st.integers(4, 12))))
    def evict_outside(self, fresh: dict[int, Steps]) -> None:
        before = len(self.live())
        self.limits.append(fresh)
        self._vacate()
        assert self.buffer.evict_outside(fresh) == before - len(self.live())

    @precondition(lambda self: self.live())
    @rule(m=st.sampled_from([0, 0.5, 1]), u=st.sampled_from([0, 0.5, 1]), k=st.integers(1, 3))
    def draw(self, m: float, u: float, k: int) -> None:
        settings = {"recent_fraction": m, "uniform_fraction": u, "inverse_temperature": 1.0}
        oldest = self.oldest_recent_merge()
        recent = any(p.merge >= oldest for p in self.live())
        for drawn in draw(self.buffer, num_groups=3, group_size=k, rng=self.rng, **settings).groups:
            candidates = [p for p in self.live() if p.prompt_id == drawn.prompt.id]
            if m == 1 and recent:
                candidates = [p for p in candidates if p.merge >= oldest]
            identities = {id(p.trajectory) for p in candidates}
            chosen = [id(t) for t in drawn.trajectories]
            assert len(chosen) == k
            assert set(chosen) <= identities
            assert len(set(chosen)) == k or len(identities) < k or m == 0.5

    @invariant()
    def same_contents(self) -> None:
        live = self.live()
        for name in "abcdef":
            expected = [p.trajectory for p in live if p.prompt_id == name]
            assert [id(t) for t in self.buffer.trajectories(name)] == [id(t) for t in expected]
        assert len(self.buffer) == len(live)
        assert self.buffer.num_prompts == len({p.prompt_id for p in live})
        copies = Counter((p.prompt_id, p.trajectory.response.tokens.tobytes()) for p in live)
        assert self.buffer.num_duplicates == sum(copies.values()) - len(copies)

    def oldest_recent_merge(self) -> int:
        """The largest number from which on there are enough groups; the first merge if there never are."""
        numbers = range(len(self.merge_sizes), 0, -1)
        return next((n for n in numbers if sum(self.merge_sizes[n - 1 :]) >= self.recent_groups), 1)

    def live(self) -> list[Place]:
        return [p for p in self.places if p.is_live]

    def _vacate(self) -> None:
        for place in self.places:
            epoch, step = place.trajectory.version
            place.is_live &= all(epoch not in fresh or fresh[epoch].includes(step) for fresh in self.limits)


BufferMatchesModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestBufferMatchesModel = BufferMatchesModel.TestCase


class BufferWithAStepsWorthOfRecentGroups(BufferMatchesModel):
    recent_groups = 4


TestBufferWithAStepsWorthOfRecentGroups = BufferWithAStepsWorthOfRecentGroups.TestCase
TestBufferWithAStepsWorthOfRecentGroups.settings = BufferMatchesModel.TestCase.settings
