"""Busy, waiting and publishing add up to the time of each process, and search and training overlap as they did."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_activity import Clock

from tba.runs import activity as activity_module
from tba.runs import overlap as overlap_module
from tba.runs.activity import (
    ENDING,
    JOINING,
    PROCESSES,
    PUBLISHING,
    SEARCHING,
    TURN,
    WAITING,
    Activity,
    read_activities,
    seconds_searched,
)
from tba.runs.overlap import Overlap, overlap_fraction
from tba.runs.time_spent import time_record, time_spent, time_values

KINDS = ("idle", "start", "generate", "compute", "publish", "wait", "fill", "score", "send", JOINING, ENDING, TURN)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(activity_module, "time", clock)
    monkeypatch.setattr(overlap_module, "time", clock)
    return clock


def test_no_activity_is_counted_twice() -> None:
    assert not WAITING & PUBLISHING
    assert not SEARCHING & (WAITING | PUBLISHING)


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 50)), max_size=12), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_they_add_up_to_the_time_since_the_start(blocks: list[tuple[str, int]], rest: int) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(activity_module, "time", clock)
        activity = Activity(None, "trainer")
        for kind, seconds in blocks:
            with activity(kind):
                clock.pass_seconds(seconds)
        clock.pass_seconds(rest)
        record = {"kind": "train", **time_record(activity)}
    spent = time_spent([record])["trainer"]
    assert spent.busy + spent.wait + spent.publish == spent.wall == sum(n for _, n in blocks) + rest
    assert spent.publish == sum(n for kind, n in blocks if kind == "publish")
    assert spent.wait == sum(n for kind, n in blocks if kind in WAITING)


def test_the_real_clock_agrees() -> None:
    """Measured, and added up from the parts: one and the same but for rounding."""
    activity = Activity(None, "searcher-0")
    for kind in itertools.islice(itertools.cycle(KINDS), 50):
        with activity(kind), activity("inner"):
            pass
    assert sum(activity.seconds().values()) == pytest.approx(activity.seconds_since_start(), abs=1e-9)


def at(seconds: float, *, kind: str = "search", source: str = "searcher-0", **spent: float) -> dict[str, Any]:
    spent = {f"seconds/{name}": value for name, value in spent.items()}
    return {"kind": kind, "step": 1, "time": 1.0, "source": source, "process_seconds": seconds, **spent}


def test_the_last_record_of_each_life_counts() -> None:
    """The Trainer of a resumed run counts anew; a Searcher that is started again has another name."""
    records = [
        at(10.0, kind="train", compute=10.0),
        at(4.0, generate=4.0),
        at(15.0, kind="train", compute=12.0, wait=3.0),
        at(9.0, generate=7.0, send=2.0),
        at(3.0, source="searcher-0.1", generate=3.0),
        at(2.0, kind="train", compute=1.0, publish=1.0),
        at(6.0, kind="event", source="trainer", compute=1.0, publish=2.0, finish=3.0),
    ]
    values = time_values(records)
    names = ("busy", "wait", "publish", "wall")
    assert [values[f"trainer_{name}_seconds"] for name in names] == [13, 6, 2, 21]
    assert [values[f"searchers_{name}_seconds"] for name in names] == [10, 2, 0, 12]
    assert [values[f"processes/searcher-0.1/{name}_seconds"] for name in names] == [3, 0, 0, 3]


def test_records_of_older_versions_say_nothing() -> None:
    assert time_spent([{"kind": "train", "step": 1, "time": 1.0, "seconds/compute": 3.0}]) == {}


def test_one_can_see_how_long_a_process_has_searched(tmp_path: Path, clock: Clock) -> None:
    activity = Activity(tmp_path, "searcher-0")

    def searched() -> float:
        return seconds_searched(read_activities(tmp_path)[0], clock.time())

    clock.pass_seconds(1)
    assert searched() == 0
    with activity("generate"):
        clock.pass_seconds(2)
        assert searched() == 2, "while it goes on, too"
        activity.seconds()  # counts what has passed, and shows nothing new
        clock.pass_seconds(1)
        assert searched() == 3
        with activity("send"):
            clock.pass_seconds(10)
            assert searched() == 3
    with activity("evaluate"):
        clock.pass_seconds(4)
    clock.pass_seconds(5)
    assert searched() == 7


class Other:
    """A Searcher in a process of its own, as its file shows it."""

    def __init__(self, run: Path, name: str, clock: Clock, pid: int = 1) -> None:
        self._path, self._clock = run / PROCESSES / f"{name}.json", clock
        self._path.parent.mkdir(exist_ok=True)
        self._record = {"process": name, "pid": pid, "detail": "", "since": 0.0, "searched": 0.0}
        self.do("start")

    def do(self, doing: str) -> None:
        if self._record.get("doing") in SEARCHING:
            self._record["searched"] += self._clock.now - self._record["counted_until"]
        self._record |= {"doing": doing, "counted_until": self._clock.now}
        self._path.write_text(json.dumps(self._record), "utf-8")


def test_the_overlap_of_a_step_is_the_time_that_a_searcher_searched_in_it(tmp_path: Path, clock: Clock) -> None:
    searcher, overlap = Other(tmp_path, "searcher-0", clock), Overlap(tmp_path)
    searcher.do("generate")
    clock.pass_seconds(100)  # before the first step: that is its start
    with overlap.training():
        clock.pass_seconds(3)
        searcher.do("wait")
        clock.pass_seconds(1)
    first = overlap.values()
    assert first["overlap/share"] == 0.75
    searcher.do("generate")
    clock.pass_seconds(2)  # the Trainer waits
    searcher.do("send")
    with overlap.training():
        clock.pass_seconds(4)
    second = overlap.values()
    assert (second["overlap/both_seconds"], second["overlap/search_seconds"]) == (0, 2)
    assert overlap_fraction([first, second]) == pytest.approx(3 / min(3 + 2, 4 + 4))


def test_of_several_searchers_the_busiest_counts(tmp_path: Path, clock: Clock) -> None:
    searchers, overlap = [Other(tmp_path, f"searcher-{i}", clock, pid=i) for i in range(2)], Overlap(tmp_path)
    with overlap.training():
        for searcher in searchers:
            searcher.do("generate")
            clock.pass_seconds(2)
            searcher.do("send")
        clock.pass_seconds(1)
    assert overlap.values()["overlap/both_seconds"] == 2


def test_a_searcher_that_is_started_again_counts_from_its_start(tmp_path: Path, clock: Clock) -> None:
    first, overlap = Other(tmp_path, "searcher-0", clock, pid=1), Overlap(tmp_path)
    first.do("generate")
    clock.pass_seconds(50)
    with overlap.training():
        again = Other(tmp_path, "searcher-0", clock, pid=2)
        again.do("generate")
        clock.pass_seconds(2)
        again.do("send")
        clock.pass_seconds(2)
    assert overlap.values()["overlap/both_seconds"] == 2


def test_those_who_take_turns_in_one_process_do_not_overlap(tmp_path: Path) -> None:
    searcher, overlap = Activity(tmp_path, "searcher-0", between=TURN), Overlap(tmp_path)
    assert read_activities(tmp_path)[0]["pid"] == os.getpid()
    with searcher("generate"), overlap.training():
        pass
    assert overlap.values() == {}
    assert overlap_fraction([]) is None


def test_whoever_has_less_to_do_is_what_the_overlap_is_a_share_of() -> None:
    def record(both: float, search: float, train: float) -> dict[str, float]:
        return {"overlap/both_seconds": both, "overlap/search_seconds": search, "overlap/train_seconds": train}

    assert overlap_fraction([record(1, 1, 10)]) == overlap_fraction([record(1, 10, 1)]) == 1.0
    assert overlap_fraction([record(0, 5, 5)]) == 0.0
    assert overlap_fraction([record(0, 0, 5)]) == 0.0, "nobody searches"
