"""Whether a run goes on and how it ended, by its lock and its files alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_folders import make_run, write_event, write_records

from tba.runs.callbacks import STOPPED_EARLY
from tba.runs.folder import LOCK, is_held, last_started, locked
from tba.runs.metrics import METRICS, Metrics, read_metrics
from tba.runs.records import newest_step
from tba.runs.result import Result
from tba.runs.state import State, standing_of
from tba.runs.summary import write_summary


def test_a_run_is_running_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, ended=False)
    with locked(run):
        assert is_held(run)
        assert standing_of(run).state is State.RUNNING
    assert not is_held(run)
    assert standing_of(run).state is State.CRASHED, "it has not said a word of its end"


def test_to_look_at_a_lock_makes_none_and_changes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    assert not is_held(run)
    assert not (run / LOCK).exists()
    with locked(run):
        pass
    os.utime(run / LOCK, (5.0, 5.0))
    assert not is_held(run)
    assert last_started(run) == 5.0


def test_whoever_takes_the_lock_starts_the_run_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with locked(run):
        pass
    os.utime(run / LOCK, (5.0, 5.0))
    with locked(run):
        assert last_started(run) > 5.0


def test_a_run_that_has_made_its_last_step_has_finished(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4, num_steps=4, accuracies=(0.5, 0.75))
    standing = standing_of(run)
    assert (standing.state, standing.step, standing.num_steps) == (State.FINISHED, 4, 4)
    assert standing.summary is not None
    assert standing.summary["accuracy_last"] == 0.75


def test_a_run_that_ended_in_order_before_its_last_step_was_stopped(tmp_path: Path) -> None:
    assert standing_of(make_run(tmp_path / "run", steps=2)).state is State.STOPPED
    assert standing_of(make_run(tmp_path / "none", steps=0)).state is State.STOPPED


def test_a_run_that_ended_itself_was_stopped_early_until_it_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2)
    write_event(run, 2, STOPPED_EARLY)
    assert standing_of(run).state is State.STOPPED_EARLY
    assert Result(run, finished=False).stopped_early
    write_event(run, 2, "resumed")
    assert standing_of(run).state is State.STOPPED
    assert not Result(run, finished=False).stopped_early


def test_a_run_that_died_after_its_last_step_has_crashed(tmp_path: Path) -> None:
    """Its last evaluation is missing."""
    assert standing_of(make_run(tmp_path / "run", steps=4, ended=False)).state is State.CRASHED


def test_a_summary_from_before_a_resume_does_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=2, num_steps=6)
    write_event(run, 2, "resumed")
    write_records(run, range(3, 5))
    standing = standing_of(run)
    assert (standing.state, standing.step, standing.summary) == (State.CRASHED, 4, None)
    write_summary(run)
    assert standing_of(run).state is State.STOPPED


def test_a_resume_goes_back_to_its_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=4, num_steps=8)
    write_event(run, 2, "resumed")
    assert newest_step(run)[0] == 2


@given(
    steps=st.lists(st.integers(1, 50), max_size=20),
    padding=st.integers(0, 90_000),
    torn=st.booleans(),
)
def test_the_newest_step_is_that_of_the_whole_file(
    steps: list[int], padding: int, torn: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever lies between the last steps and the end: long records, other kinds, half a line."""
    run = tmp_path_factory.mktemp("run")
    metrics = Metrics(run)
    for step in steps:
        metrics.write("train", step, {})
    metrics.write("search", 0, {"long": "x" * padding})
    metrics.close()
    if torn:
        with open(run / METRICS, "ab") as file:
            file.write(b'{"kind": "train", "step": 99')
    records = read_metrics(run)
    assert newest_step(run) == (steps[-1] if steps else 0, records[-1]["time"])


@pytest.mark.parametrize("kinds", [("eval",), ("train",), ("event",), ("train", "eval")])
def test_some_kinds_of_records_are_those_of_all(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    run = make_run(tmp_path / "run", accuracies=(0.1, 0.2, 0.3))
    write_event(run, 2, "resumed")
    write_records(run, range(3, 4))
    assert read_metrics(run, kinds) == [record for record in read_metrics(run) if record["kind"] in kinds]
