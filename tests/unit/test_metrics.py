from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.metrics import FILE, Metrics, ModuleSink, TensorBoardSink, read_metrics
from tba.types import TbaError


def steps(run: Path, kind: str = "train") -> list[int]:
    return [record["step"] for record in read_metrics(run) if record["kind"] == kind]


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.written.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def test_a_record_says_its_kind_step_and_time(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, elapsed=100.0)
    metrics.write("train", 3, {"loss": 0.5, "staleness/counts": {2: 7}, "lengths": (1, 2)})
    metrics.close()
    (record,) = read_metrics(tmp_path)
    assert record["time"] >= 100.0
    del record["time"]
    assert record == {"kind": "train", "step": 3, "loss": 0.5, "staleness/counts": {"2": 7}, "lengths": [1, 2]}


def test_a_run_without_records_has_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    Metrics(tmp_path).close()
    assert read_metrics(tmp_path) == []


def test_numbers_json_does_not_know_become_null(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.write("train", 1, {"a": math.nan, "b": [math.inf, 1.0], "c": {"d": -math.inf}, "e": np.float32("nan")})
    metrics.write("train", 2, {"a": np.float64(0.5), "b": np.int64(3)})
    metrics.close()
    text = (tmp_path / FILE).read_text("utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    first, second = read_metrics(tmp_path)
    assert (first["a"], first["b"], first["c"], first["e"]) == (None, [None, 1.0], {"d": None}, None)
    assert (second["a"], second["b"]) == (0.5, 3)


def test_a_resume_takes_back_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    before = Metrics(tmp_path)
    for step in range(1, 8):
        before.write("train", step, {})
    before.write("eval", 6, {})
    before.write("eval", 4, {})
    before.write("event", 7, {"event": "reward_failed"})
    before.close()
    after = Metrics(tmp_path)
    after.write("event", 5, {"event": "resumed"})
    after.write("train", 6, {"again": True})
    after.close()
    assert steps(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert [r for r in read_metrics(tmp_path) if r["kind"] == "train"][-1]["again"]
    assert steps(tmp_path, "eval") == [4]
    assert [r["event"] for r in read_metrics(tmp_path) if r["kind"] == "event"] == ["reward_failed", "resumed"]


def test_a_second_resume_from_further_back_takes_back_more(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for resumed, last in ((None, 6), (4, 5), (2, 3)):
        if resumed is not None:
            metrics.write("event", resumed, {"event": "resumed"})
        for step in range((resumed or 0) + 1, last + 1):
            metrics.write("train", step, {"after": resumed})
    metrics.close()
    assert [(r["step"], r["after"]) for r in read_metrics(tmp_path) if r["kind"] == "train"] == [
        (1, None),
        (2, None),
        (3, 2),
    ]


@given(cut=st.integers(2, 60))
@settings(max_examples=30, deadline=None)
def test_a_torn_last_line_costs_no_other_record(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A crash may leave half a line. What the next process writes, the resume itself first, must not join it."""
    run = tmp_path_factory.mktemp("run")
    metrics = Metrics(run)
    metrics.write("train", 1, {"loss": 1.0})
    metrics.write("train", 2, {"loss": 2.0, "text": "é" * 40})
    metrics.close()
    content = (run / FILE).read_bytes()
    (run / FILE).write_bytes(content[:-cut])
    assert steps(run) == [1]
    resumed = Metrics(run)
    resumed.write("event", 1, {"event": "resumed"})
    resumed.write("train", 2, {"loss": 3.0})
    resumed.close()
    assert [record.get("event", record.get("loss")) for record in read_metrics(run)] == [1.0, "resumed", 3.0]


def test_a_whole_last_line_is_left_as_it_is(tmp_path: Path) -> None:
    for step in (1, 2):
        metrics = Metrics(tmp_path)
        metrics.write("train", step, {})
        metrics.close()
    assert len((tmp_path / FILE).read_text("utf-8").splitlines()) == 2


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    """The launcher writes its events while the Trainer writes its steps."""
    trainer, launcher = Metrics(tmp_path), Metrics(tmp_path)
    for step in range(5):
        trainer.write("train", step, {})
        launcher.write("event", step, {"event": "searcher_restarted"})
    trainer.close()
    launcher.close()
    assert steps(tmp_path) == steps(tmp_path, "event") == list(range(5))
    for line in (tmp_path / FILE).read_text("utf-8").splitlines():
        json.loads(line)


def test_sinks_get_the_numbers(tmp_path: Path) -> None:
    sink = Recorder()
    metrics = Metrics(tmp_path, sinks=[sink])
    metrics.write("train", 1, {"loss": 0.5, "steps": 3, "nan": math.nan, "name": "x", "on": True, "counts": {"1": 2}})
    metrics.write("eval", 2, {"accuracy": 0.25})
    metrics.write("event", 2, {"event": "resumed", "number": 1})
    metrics.close()
    assert sink.written == [(1, {"loss": 0.5, "steps": 3.0}), (2, {"eval/accuracy": 0.25})]
    assert sink.closed


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, sinks=[TensorBoardSink(tmp_path)])
    for step in (1, 2, 3):
        metrics.write("train", step, {"loss": step / 4, "reward": math.nan if step == 2 else 1.0})
    metrics.write("search", 2, {"tokens_per_second": 123.0})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["loss", "reward", "search/tokens_per_second"]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [e.step for e in events.Scalars("reward")] == [1, 3]
    assert [(e.step, e.value) for e in events.Scalars("search/tokens_per_second")] == [(2, 123.0)]


def test_a_tracker_that_is_not_installed_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match="no_such_tracker needs the package"):
        ModuleSink("no_such_tracker", tmp_path, {})


def test_a_tracker_gets_the_settings_and_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    module = SimpleNamespace(
        init=lambda **settings: calls.append(("init", settings)),
        log=lambda values, step: calls.append(("log", (step, values))),
        finish=lambda: calls.append(("finish", None)),
    )
    monkeypatch.setitem(sys.modules, "some_tracker", module)
    run = tmp_path / "my-run"
    run.mkdir()
    metrics = Metrics(run, sinks=[ModuleSink("some_tracker", run, {"seed": 1})])
    metrics.write("train", 4, {"loss": 0.5})
    metrics.close()
    assert calls == [
        ("init", {"project": "tba", "name": "my-run", "config": {"seed": 1}}),
        ("log", (4, {"loss": 0.5})),
        ("finish", None),
    ]
