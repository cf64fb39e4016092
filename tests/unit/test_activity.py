from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from told_time import Clock

from tba.runs import activity as activity_module
from tba.runs.activity import PROCESSES, Activity, OpenActivities, read_activities, silences
from tba.runs.phases import doing_text


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(activity_module, "time", clock)
    return clock


def test_time_goes_to_the_innermost_activity(clock: Clock) -> None:
    activity = Activity(None, "trainer")
    clock.pass_seconds(1)
    with activity("outer"):
        clock.pass_seconds(2)
        with activity("inner"):
            clock.pass_seconds(4)
        clock.pass_seconds(8)
        with activity("inner", "again"):
            clock.pass_seconds(16)
    clock.pass_seconds(32)
    assert activity.seconds() == {"idle": 33, "outer": 10, "inner": 20}


def test_the_seconds_add_up_to_the_time_that_has_passed(clock: Clock) -> None:
    activity = Activity(None, "trainer")
    with activity("outer"), activity("inner"):
        clock.pass_seconds(3)
        assert activity.seconds() == {"idle": 0, "outer": 0, "inner": 3}, "an activity counts while it goes on"
        clock.pass_seconds(5)
    assert sum(activity.seconds().values()) == 8


def test_an_error_ends_the_activity(clock: Clock) -> None:
    activity = Activity(None, "trainer")

    def fail() -> None:
        clock.pass_seconds(1)
        raise RuntimeError

    with pytest.raises(RuntimeError), activity("outer"):
        fail()
    clock.pass_seconds(2)
    assert activity.seconds() == {"idle": 2, "outer": 1}


def test_what_a_process_does_can_be_read_while_it_does_it(tmp_path: Path, clock: Clock) -> None:
    activity = Activity(tmp_path, "searcher-0")
    (shown,) = read_activities(tmp_path)
    assert (shown["doing"], shown["pid"], shown["process"]) == ("idle", os.getpid(), "searcher-0")
    clock.pass_seconds(5)
    activity.note(version=7)
    with activity("generate", "8 prompts × 16"):
        clock.pass_seconds(2)
        (shown,) = read_activities(tmp_path)
        assert (shown["doing"], shown["detail"], shown["version"]) == ("generate", "8 prompts × 16", 7)
        assert shown["since"] == 1_005.0
        with activity("load"):
            assert read_activities(tmp_path)[0]["doing"] == "load"
        assert read_activities(tmp_path)[0]["doing"] == "generate"
    assert read_activities(tmp_path)[0]["doing"] == "idle"


def test_a_long_or_foreign_detail_stays_readable(tmp_path: Path) -> None:
    activity = Activity(tmp_path, "searcher-0")
    for detail in ("x" * 5_000, "×" * 5_000, "😀" * 5_000, '"\\\n' * 1_000):
        with activity("generate", detail):
            (shown,) = read_activities(tmp_path)
            assert shown["doing"] == "generate"
            assert detail.startswith(shown["detail"])


def test_every_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    for name in ("trainer", "searcher-0", "searcher-1"):
        Activity(tmp_path, name)
    (tmp_path / PROCESSES / "searcher-0.starts").write_text("1", "utf-8")
    assert [shown["process"] for shown in read_activities(tmp_path)] == ["searcher-0", "searcher-1", "trainer"]


def test_a_file_caught_in_the_middle_of_a_change_is_passed_over(tmp_path: Path) -> None:
    Activity(tmp_path, "trainer")
    (tmp_path / PROCESSES / "searcher-0.json").write_bytes(json.dumps({"doing": "x"}).encode()[:-3])
    assert [shown["process"] for shown in read_activities(tmp_path)] == ["trainer"]


def test_a_started_process_replaces_what_its_forerunner_said(tmp_path: Path) -> None:
    first = Activity(tmp_path, "searcher-0")
    with first("generate", "a long detail, longer than what comes next"):
        Activity(tmp_path, "searcher-0")
        assert [shown["doing"] for shown in read_activities(tmp_path)] == ["idle"]


def test_a_beat_shows_that_the_work_goes_on(tmp_path: Path, clock: Clock) -> None:
    activity = Activity(tmp_path, "searcher-0")
    with activity("generate"):
        began = read_activities(tmp_path)[0]
        clock.pass_seconds(100)
        assert read_activities(tmp_path)[0]["beat"] == began["beat"], "nothing happened"
        assert silences(read_activities(tmp_path))["searcher-0"] == 100
        activity.beat()
        shown = read_activities(tmp_path)[0]
        assert (shown["since"], shown["beat"]) == (began["since"], began["beat"] + 100)
        assert silences([shown])["searcher-0"] == 0
    assert read_activities(tmp_path)[0]["since"] == began["since"] + 100


def test_activities_that_follow_each_other_are_signs_of_life_also_if_they_are_the_same(
    tmp_path: Path, clock: Clock
) -> None:
    """A loop that does one thing all the time, such as waiting in small portions."""
    activity = Activity(tmp_path, "searcher-0")
    beats = set()
    for _ in range(5):
        clock.pass_seconds(1)
        with activity("wait"):
            beats.add(read_activities(tmp_path)[0]["beat"])
    assert len(beats) == 5
    clock.pass_seconds(1)
    activity.seconds()
    assert read_activities(tmp_path)[0]["beat"] == clock.now


def test_a_thread_beats_while_it_is_quiet(tmp_path: Path) -> None:
    """Ends by the time limit of tests if it does not."""
    activity = Activity(tmp_path, "searcher-0")
    with activity("score"), activity.quiet():
        first = read_activities(tmp_path)[0]["beat"]
        while not any(shown["beat"] > first for shown in read_activities(tmp_path)):
            pass
        assert read_activities(tmp_path)[0]["doing"] == "score"


def test_quiet_blocks_nest(tmp_path: Path) -> None:
    activity = Activity(tmp_path, "searcher-0")
    with activity.quiet():
        with activity.quiet():
            pass
        assert activity._num_quiet == 1
    assert activity._num_quiet == 0


def test_records_of_a_run_without_beats_can_be_read(tmp_path: Path, clock: Clock) -> None:
    """As tba 0.1.0 left them."""
    record = {"process": "trainer", "pid": 1, "doing": "compute", "detail": "step 3", "since": 900.0}
    (tmp_path / PROCESSES).mkdir()
    (tmp_path / PROCESSES / "trainer.json").write_text(json.dumps(record), "utf-8")
    [shown] = read_activities(tmp_path)
    assert silences([shown]) == {"trainer": 100}
    assert doing_text(shown) == "training step 3"


def test_those_who_take_turns_in_one_process_are_silent_together(clock: Clock) -> None:
    beats = (("a", 1, 990), ("b", 1, 950), ("c", 2, 900))
    shown = [{"process": name, "pid": pid, "since": 0, "beat": beat} for name, pid, beat in beats]
    assert silences(shown) == {"a": 10, "b": 10, "c": 100}


def by_name(activities: list[dict[str, object]]) -> dict[object, object]:
    return {activity["process"]: activity["doing"] for activity in activities}


def test_files_that_are_kept_open_show_the_same(tmp_path: Path, clock: Clock) -> None:
    """Also of a process that is started again, and of one that comes later, once somebody has looked."""
    searcher, shown = Activity(tmp_path, "searcher-0"), OpenActivities(tmp_path)
    with searcher("generate"):
        assert shown.read() == read_activities(tmp_path)
    assert shown.read() == read_activities(tmp_path)
    Activity(tmp_path, "searcher-0", between="turn")
    Activity(tmp_path, "trainer")
    assert by_name(shown.read()) == {"searcher-0": "turn"}
    clock.pass_seconds(2)
    assert by_name(shown.read()) == {"searcher-0": "turn", "trainer": "idle"}
    (tmp_path / PROCESSES / "trainer.json").write_bytes(b'{"process": "tr')
    assert by_name(shown.read()) == {"searcher-0": "turn"}
    shown.close()


def test_half_of_a_change_is_never_read(tmp_path: Path) -> None:
    """Whoever reads while a record is written gets the beginning of the new one and the end of the old one."""
    activity = Activity(tmp_path, "searcher-0")
    file = tmp_path / PROCESSES / "searcher-0.json"

    def shown(kind: str, detail: str) -> tuple[bytes, dict[str, Any]]:
        with activity(kind, detail):
            return file.read_bytes(), read_activities(tmp_path)[0]

    records = [shown("generate", ""), shown("load", "of step 7"), shown("evaluate", "first evaluation"), shown("w", "")]
    for (old, before), (new, after) in itertools.permutations(records, 2):
        for k in range(len(new)):
            file.write_bytes(new[:k] + old[k:])
            assert read_activities(tmp_path) in ([], [before], [after])
