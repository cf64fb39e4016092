"""Every trajectory that was merged has one fate, whatever is done to the buffer."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
from buffer_cases import evict_before, group, rewarded, trajectory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tba.buffer.ledger import RowLedger
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.types import Group

FATES = ("trained", "buffered", "evicted", "too_stale")


def train_on(buffer: ReplayBuffer, rng: np.random.Generator, group_size: int = 2) -> list[list[int]]:
    drawn = draw(
        buffer,
        num_groups=2,
        group_size=group_size,
        recent_fraction=0.5,
        uniform_fraction=0.5,
        inverse_temperature=1.0,
        rng=rng,
    )
    buffer.ledger.count_draws(drawn.rows)
    return drawn.rows


def test_each_fate_by_hand() -> None:
    """Rows 0 and 1 are evicted, the first of them after it was drawn; 2 and 3 grow stale, the first drawn thrice."""
    buffer = ReplayBuffer(4, 4)
    buffer.extend([group("a", [trajectory(version=0), trajectory(version=0)], source="searcher-0")])
    buffer.ledger.count_draws([[0, 0]])
    buffer.extend([group("b", [trajectory(version=1)] * 2, source="searcher-1")])
    buffer.ledger.count_draws([[2, 2], [2, 0]])
    buffer.extend([group("c", [trajectory(version=5)] * 2, source="searcher-0")])
    evict_before(buffer, 3)
    assert buffer.ledger_values() == {
        "merged": {"searcher-0": 4, "searcher-1": 2},
        "trained": 2,
        "buffered": 2,
        "evicted": 1,
        "too_stale": 1,
        "num_draws": 6,
        "most_draws": 3,
    }


def test_an_empty_ledger_has_every_count() -> None:
    values = ReplayBuffer(4, 4).ledger_values()
    assert values.pop("merged") == {}
    assert set(values.values()) == {0}


def test_draws_may_be_counted_before_their_rows_arrive() -> None:
    """As on a resume, where draws are read first."""
    ledger = RowLedger()
    ledger.count_draws(np.array([[5_000, 2], [5_000, 3]]))
    ledger.count_draws([])
    assert ledger.num_undrawn(np.array([1, 2, 3, 5_000])) == 1
    assert (ledger.values(0)["num_draws"], ledger.values(0)["most_draws"]) == (4, 2)


class Merged(RuleBasedStateMachine):
    """A buffer to which anything may happen, beside a plain list of what became of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = self.empty()
        self.merges: list[list[Group]] = []
        self.draws: list[list[list[int]]] = []
        self.limit = 0
        self.num_drawn: Counter[int] = Counter()
        self.gone: set[int] = set()
        self.num_rows = 0
        self.rng = np.random.default_rng(0)

    @staticmethod
    def empty() -> ReplayBuffer:
        return ReplayBuffer(12, 5, recent_groups=2)

    @rule(prompts=st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), versions=st.data())
    def merge(self, prompts: list[str], versions: st.DataObject) -> None:
        drawn = st.lists(st.integers(0, 9), min_size=1, max_size=4)
        groups = [group(name, [trajectory(version=v) for v in versions.draw(drawn)], source=name) for name in prompts]
        self.buffer.extend(groups)
        self.merges.append(groups)
        self.num_rows += sum(len(g.trajectories) for g in groups)
        self.look_who_is_gone()

    @precondition(lambda self: len(self.buffer) > 0)
    @rule()
    def train(self) -> None:
        rows = train_on(self.buffer, self.rng)
        self.draws.append(rows)
        self.num_drawn.update(row for K in rows for row in K)
        assert not self.gone & {row for K in rows for row in K}

    @rule(limit=st.integers(0, 9))
    def forget_old(self, limit: int) -> None:
        self.limit = max(self.limit, limit)
        evict_before(self.buffer, self.limit)
        self.look_who_is_gone()

    @rule(more=st.integers(0, 2))
    def resume(self, more: int) -> None:
        """The buffer is rebuilt from the log and the record of draws; a limit may have moved on meanwhile."""
        before, rebuilt = self.buffer, self.empty()
        for rows in self.draws:
            rebuilt.ledger.count_draws(rows)
        for groups in self.merges:
            rebuilt.extend(groups)
        self.limit += more
        evict_before(rebuilt, self.limit)
        rebuilt.restore_draw_state(json.loads(json.dumps(before.draw_state())))
        evict_before(before, self.limit)
        assert rebuilt.ledger_values() == before.ledger_values()
        assert len(rebuilt) == len(before)
        self.buffer = rebuilt
        self.look_who_is_gone()

    def look_who_is_gone(self) -> None:
        held = [r.arrivals[place] for r in self.buffer._records.values() for place in r.live_places(r.start)]
        self.gone = set(range(self.num_rows)) - set(map(int, held))

    @invariant()
    def every_row_has_one_fate(self) -> None:
        values: dict[str, Any] = self.buffer.ledger_values()
        assert sum(values[name] for name in FATES) == sum(values["merged"].values()) == self.num_rows
        undrawn = set(range(self.num_rows)) - set(self.num_drawn)
        assert values["trained"] == len(self.num_drawn)
        assert values["buffered"] == len(undrawn - self.gone)
        assert values["evicted"] + values["too_stale"] == len(undrawn & self.gone)
        assert values["num_draws"] == self.num_drawn.total()
        assert values["most_draws"] == max(self.num_drawn.values(), default=0)


TestMerged = Merged.TestCase
TestMerged.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_what_arrives_too_late_is_too_stale() -> None:
    buffer = ReplayBuffer(10, 10)
    evict_before(buffer, 3)
    buffer.extend([rewarded("a", [1, 2], version=1)])
    assert (buffer.ledger_values()["too_stale"], buffer.ledger_values()["buffered"]) == (2, 0)
