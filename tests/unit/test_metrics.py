from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.runs.metrics import METRICS, Metrics, Samples, TensorBoardSink, TrackioSink, WandbSink, read_metrics
from tba.types import TbaError


def steps(run: Path, kind: str = "train") -> list[int]:
    return [record["step"] for record in read_metrics(run) if record["kind"] == kind]


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.written: list[tuple[int, dict[str, float]]] = []
        self.closed = False
        self.samples: list[tuple[int, Samples]] = []

    def write_samples(self, step: int, samples: Samples) -> None:
        self.samples.append((step, samples))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
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
    text = (tmp_path / METRICS).read_text("utf-8")
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
    content = (run / METRICS).read_bytes()
    (run / METRICS).write_bytes(content[:-cut])
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
    assert len((tmp_path / METRICS).read_text("utf-8").splitlines()) == 2


def test_two_writers_share_a_file(tmp_path: Path) -> None:
    """The launcher writes its events while the Trainer writes its steps."""
    trainer, launcher = Metrics(tmp_path), Metrics(tmp_path)
    for step in range(5):
        trainer.write("train", step, {})
        launcher.write("event", step, {"event": "searcher_restarted"})
    trainer.close()
    launcher.close()
    assert steps(tmp_path) == steps(tmp_path, "event") == list(range(5))
    for line in (tmp_path / METRICS).read_text("utf-8").splitlines():
        json.loads(line)


def test_sinks_get_the_numbers(tmp_path: Path) -> None:
    sink = Recorder()
    metrics = Metrics(tmp_path, sinks=[sink])
    metrics.write("train", 1, {"loss": 0.5, "steps": 3, "nan": math.nan, "name": "x", "on": True, "counts": {"1": 2}})
    metrics.write("eval", 2, {"accuracy": 0.25})
    metrics.write("event", 2, {"event": "resumed", "number": 1})
    metrics.close()
    assert sink.written == [(1, {"train/loss": 0.5, "train/steps": 3.0}), (2, {"eval/accuracy": 0.25})]
    assert sink.closed


SAMPLE: dict[str, Any] = {
    "prompt_id": "rows-1",
    "prompt": "<|user|>2+2?",
    "messages": [{"role": "user", "content": "2+2?"}],
    "response": "**5**\n```\n<b>\x1b[31m",
    "reward": -0.5,
    "reward_parts": {"right": 0.0, "brief": -1.0},
    "group": {"num_responses": 4, "lowest_reward": -0.5, "mean_reward": 0.25, "highest_reward": 1.0},
    "columns": {"answer": "4"},
    "notes": {"judge": "wrong"},
    "version": 3,
    "num_tokens": 7,
    "cut_off": True,
    "on_policy": True,
    "source": "searcher-0",
}
ROW = {
    "prompt": "user: 2+2?",
    "response": "**5**\n```\n<b>\\x1b[31m",
    "reward": -0.5,
    "rewards/right": 0.0,
    "rewards/brief": -1.0,
    "mean reward of its group": 0.25,
    "row of the data": "answer: 4\njudge: wrong",
    "weights of step": 3,
    "tokens": 7,
    "cut off": "yes",
    "prompt id": "rows-1",
}


def test_samples_are_a_record_and_go_to_every_sink(tmp_path: Path) -> None:
    sink = Recorder()
    metrics = Metrics(tmp_path, sinks=[sink])
    metrics.write_samples(4, [SAMPLE])
    metrics.close()
    (record,) = read_metrics(tmp_path)
    assert (record["kind"], record["step"], record["samples"]) == ("samples", 4, [SAMPLE])
    assert sink.samples == [(4, [SAMPLE])]
    assert sink.written == []


def test_tensorboard_shows_samples_as_they_are_and_the_settings(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoardSink(tmp_path, {"run": {"seed": 3, "name": None}, "reward": {"weights": [1.0, 0.2]}})
    metrics = Metrics(tmp_path, sinks=[sink])
    metrics.write_samples(4, [SAMPLE])
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (shown,) = events.Tensors("samples")
    assert shown.step == 4
    text = shown.tensor_proto.string_val[0].decode()
    # Within a block of code nothing is Markdown or HTML, and only what is indented is in it.
    assert "\n    **5**\n    ```\n    <b>\\x1b[31m\n" in text
    assert "    user: 2+2?" in text
    assert "    reward -0.500 (right 0.000, brief -1.000)" in text
    (settings,) = events.Tensors("settings")
    assert "    [reward]\n    weights = [1.0, 0.2]" in settings.tensor_proto.string_val[0].decode()
    assert "_hparams_/session_start_info" in events.Tags()["tensors"]


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = Metrics(tmp_path, sinks=[TensorBoardSink(tmp_path)])
    for step in (1, 2, 3):
        metrics.write("train", step, {"loss": step / 4, "reward": math.nan if step == 2 else 1.0})
    metrics.write("search", 2, {"tokens_per_second": 123.0})
    metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    own = {tag for tag in events.Tags()["scalars"] if not tag.startswith("perf/")}
    assert own == {"search/tokens_per_second", "train/loss", "train/reward"}
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [e.step for e in events.Scalars("train/reward")] == [1, 3]
    assert [(e.step, e.value) for e in events.Scalars("search/tokens_per_second")] == [(2, 123.0)]


@pytest.mark.parametrize(("sink", "name"), [(WandbSink, "wandb"), (TrackioSink, "trackio")])
def test_a_tracker_that_is_not_installed_is_told_in_one_line(
    sink: type[WandbSink | TrackioSink], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TbaError) as told:
        sink(tmp_path, {})
    assert str(told.value) == f"metrics.{name} needs the package {name}: pip install 'trajectory-balance[{name}]'"


class FakeTracker:
    """The calls that W&B and trackio share; what they keep differs."""

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.is_finished = False

    def init(self, **settings: Any) -> None:
        self.begun = settings

    def finish(self) -> None:
        self.is_finished = True

    def Table(self, columns: list[str], data: list[list[Any]]) -> list[dict[str, Any]]:
        return [dict(zip(columns, row, strict=True)) for row in data]


class FakeWandb(FakeTracker):
    """W&B's rule, as seen with wandb 0.31: a row with a lower step than the last is dropped, one with the same step is
    merged into it, and without a step every call makes a row."""

    def __init__(self) -> None:
        super().__init__()
        self.axes: dict[str, str] = {}

    def define_metric(self, name: str, step_metric: str) -> None:
        self.axes[name] = step_metric

    def log(self, values: dict[str, Any], step: int | None = None) -> None:
        last = self.rows[-1]["_step"] if self.rows else -1
        if step is None or step > last:
            self.rows.append({"_step": last + 1 if step is None else step, **values})
        elif step == last:
            self.rows[-1].update(values)


class FakeTrackio(FakeTracker):
    """Every call makes a row, whatever its step."""

    def log(self, values: dict[str, Any], step: int) -> None:
        self.rows.append({"step": step, **values})


def write_out_of_order(run: Path, sink: WandbSink | TrackioSink) -> None:
    """As an asynchronous run does: evaluations of older weights come late, and several reports within one step."""
    metrics = Metrics(run, sinks=[sink])
    metrics.write("train", 4, {"loss": 0.5, "counts": {"1": 2}})
    metrics.write("eval", 2, {"accuracy": 0.1})
    metrics.write("eval", 3, {"accuracy": 0.2})
    metrics.write("search", 4, {"reward": 0.3})
    metrics.write("search", 4, {"reward": 0.4})
    metrics.write("event", 4, {"event": "resumed"})
    metrics.write("train", 5, {"loss": 0.25})
    metrics.write("eval", 4, {"accuracy": 0.6})
    metrics.close()


SENT = {
    ("train/step", "train/loss"): [(4, 0.5), (5, 0.25)],
    ("eval/step", "eval/accuracy"): [(2, 0.1), (3, 0.2), (4, 0.6)],
    ("search/step", "search/reward"): [(4, 0.3), (4, 0.4)],
}


def test_wandb_keeps_every_record_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    write_out_of_order(tmp_path, WandbSink(tmp_path, {"seed": 1}))
    assert fake.begun == {"project": "tba", "name": tmp_path.name, "config": {"seed": 1}}
    kept = {(axis, name): [(row.get(axis), row[name]) for row in fake.rows if name in row] for axis, name in SENT}
    assert kept == SENT
    assert fake.axes == {name: axis for axis, name in SENT}
    assert fake.is_finished


def test_trackio_keeps_every_record_with_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    write_out_of_order(tmp_path, TrackioSink(tmp_path, {"seed": 1}))
    assert fake.begun == {"project": "tba", "name": tmp_path.name, "config": {"seed": 1}}
    kept = {(axis, name): [(row["step"], row[name]) for row in fake.rows if name in row] for axis, name in SENT}
    assert kept == SENT
    assert fake.is_finished


def test_wandb_gets_a_table_of_samples_over_its_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    WandbSink(tmp_path, {}).write_samples(4, [SAMPLE])
    assert fake.rows == [{"_step": 0, "samples/table": [ROW], "samples/step": 4}]


def test_trackio_gets_a_table_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    TrackioSink(tmp_path, {}).write_samples(4, [SAMPLE])
    assert fake.rows == [{"step": 4, "samples": [ROW]}]
