"""A user's functions beside a run: who is called for what, and how they end it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import tba
from tba.runs.callbacks import STOPPED_EARLY, Callbacks
from tba.runs.metrics import Metrics, read_metrics
from tba.types import TbaError


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int, float]] = []

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append(("step", step, metrics["loss"]))

    def on_evaluation(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.calls.append(("evaluation", step, metrics["accuracy"]))


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    return Metrics(tmp_path)


def test_each_step_and_each_evaluation_is_told_once_and_in_order(tmp_path: Path, metrics: Metrics) -> None:
    metrics.write("train", 1, {"loss": 9.0})  # before the run was resumed
    recorder, kinds = Recorder(), list[tuple[str, int]]()
    callbacks = Callbacks(tmp_path, [recorder, lambda step, values: kinds.append((values["kind"], step))])
    assert not callbacks.poll()
    metrics.write("train", 2, {"loss": 0.5})
    metrics.write("search", 2, {"reward": 1.0})
    metrics.write("event", 2, {"event": "resumed"})
    metrics.write("eval", 2, {"accuracy": 0.75})
    assert not callbacks.poll()
    metrics.write("train", 3, {"loss": 0.25})
    assert not callbacks.poll()
    assert not callbacks.poll()
    assert recorder.calls == [("step", 2, 0.5), ("evaluation", 2, 0.75), ("step", 3, 0.25)]
    assert kinds == [("train", 2), ("eval", 2), ("train", 3)]


def raises(step: int, values: Mapping[str, Any]) -> None:
    raise tba.StopRun


@pytest.mark.parametrize("ends", [lambda step, values: "stop", raises], ids=["returns", "raises"])
def test_a_callback_ends_the_run_and_is_not_called_again(tmp_path: Path, metrics: Metrics, ends: Any) -> None:
    calls: list[int] = []
    callbacks = Callbacks(tmp_path, [ends, lambda step, values: calls.append(step)])
    for step in (1, 2):
        metrics.write("train", step, {"loss": 0.5})
    assert callbacks.poll()
    metrics.write("train", 3, {"loss": 0.5})
    assert callbacks.poll(), "it stays so"
    assert calls == [1], "the others hear of the step that was the last"
    assert callbacks.error is None
    told = [record for record in read_metrics(tmp_path) if record["kind"] == "event"]
    assert [(record["event"], record["step"]) for record in told] == [(STOPPED_EARLY, 1)]


def test_an_error_ends_the_run_and_is_kept(tmp_path: Path, metrics: Metrics) -> None:
    def fails(step: int, values: Mapping[str, Any]) -> None:
        raise ValueError("mine")

    callbacks = Callbacks(tmp_path, [fails])
    metrics.write("train", 1, {"loss": 0.5})
    assert callbacks.poll()
    assert isinstance(callbacks.error, ValueError)


def test_a_callback_cannot_change_what_the_next_one_sees(tmp_path: Path, metrics: Metrics) -> None:
    seen: list[Any] = []
    callbacks = Callbacks(tmp_path, [lambda step, values: values.clear(), lambda step, values: seen.append(values)])
    metrics.write("train", 1, {"loss": 0.5})
    callbacks.poll()
    assert seen[0]["loss"] == 0.5


def test_one_of_the_two_methods_is_enough_and_nothing_is_too_little(tmp_path: Path, metrics: Metrics) -> None:
    class OnlyEvaluations:
        def on_evaluation(self, step: int, values: Mapping[str, Any]) -> str:
            return "stop"

    callbacks = Callbacks(tmp_path, [OnlyEvaluations()])
    metrics.write("train", 1, {"loss": 0.5})
    assert not callbacks.poll()
    metrics.write("eval", 1, {"accuracy": 0.5})
    assert callbacks.poll()
    with pytest.raises(TbaError, match="neither a function of"):
        tba.train(callbacks=["stop"])
