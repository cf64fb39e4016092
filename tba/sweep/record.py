"""What the runs of a sweep came to, read from their folders, and `sweep.jsonl`, which has a line for each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tba.learn.checkpoint import list_checkpoints
from tba.runs.metrics import read_metrics
from tba.runs.records import read_evaluations
from tba.runs.summary import SUMMARY, headline_of_run, write_summary
from tba.sweep.settings import PlannedRun, SweepSettings

RECORD = "sweep.jsonl"


@dataclass(frozen=True)
class Result:
    """A run that has ended: its value, or why there is none."""

    arm: str
    settings: Mapping[str, Any]
    seed: int
    metric: str
    value: float | None
    seconds: float
    """From the run's start to its end, without what a kill interrupted."""
    curve: Sequence[tuple[float, ...]] = ()
    """The evaluations: step, seconds since the start of the run, value."""
    resumed: bool = False
    """Whether the run was continued from a checkpoint."""
    failure: str = ""

    def largest_drop(self, *, minimize: bool = False) -> float:
        """How much worse the curve became than the best it had reached before, at most."""
        sign = -1.0 if minimize else 1.0
        best, drop = -float("inf"), 0.0
        for *_, value in self.curve:
            best = max(best, sign * value)
            drop = max(drop, best - sign * value)
        return drop


def is_finished(run: PlannedRun) -> bool:
    """Whether the run has made all its steps and has said what came of them.

    A run that was killed after its last evaluation lacks its summary only, which is made up for here.
    """
    num_steps = run.config.trainer.num_steps
    if (run.folder / SUMMARY).is_file():
        return bool(json.loads((run.folder / SUMMARY).read_text("utf-8")).get("steps", 0) >= num_steps)
    found = list_checkpoints(run.folder)
    if not found or found[-1].step < num_steps:
        return False
    if run.config.evaluation.period and num_steps not in {e["step"] for e in read_evaluations(run.folder)}:
        return False
    write_summary(run.folder)
    return True


def result_of(run: PlannedRun, sweep: SweepSettings) -> Result:
    """The value of a finished run, by its evaluations."""
    evaluations = read_evaluations(run.folder)
    seconds = json.loads((run.folder / SUMMARY).read_text("utf-8"))["wall_seconds"]
    metric = sweep.metric or headline_of_run(run.folder).metric_of(evaluations[-1] if evaluations else {})
    curve = [(e["step"], e["time"], e[metric]) for e in evaluations if e.get(metric) is not None]
    resumed = any(r["event"] == "resumed" for r in read_metrics(run.folder, ("event",)))
    if not curve:
        names = sorted({k for e in evaluations for k, v in e.items() if isinstance(v, float)} - {"time"})
        failure = f"no evaluation has a number {metric!r} (sweep.metric); they have {', '.join(names) or 'none'}"
        return _result(run, metric, None, seconds, resumed=resumed, failure=failure)
    value = value_of([v for *_, v in curve], sweep)
    return _result(run, metric, value, seconds, curve=curve, resumed=resumed)


def failed(run: PlannedRun, metric: str, seconds: float, failure: str) -> Result:
    return _result(run, metric, None, seconds, failure=failure)


def _result(run: PlannedRun, metric: str, value: float | None, seconds: float, **rest: Any) -> Result:
    return Result(run.arm.name, run.arm.settings, run.seed, metric, value, seconds, **rest)


def value_of(values: Sequence[float], sweep: SweepSettings) -> float:
    """What a curve counts as. The first weights are the same for every arm, so their evaluation tells nothing."""
    if sweep.value == "last":
        return values[-1]
    if sweep.value == "best":
        return min(values) if sweep.minimize else max(values)
    later = values[1:] or values
    return sum(later) / len(later)


class Record:
    """The file, which only grows. Where a run has several lines, the newest counts."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORD
        self._lines = set(self._path.read_text("utf-8").splitlines() if self._path.exists() else ())

    def append(self, result: Result) -> None:
        """A line that is there already is not written again."""
        line = json.dumps(asdict(result), ensure_ascii=False)
        if line in self._lines:
            return
        self._lines.add(line)
        before = self._path.read_bytes() if self._path.exists() else b""
        torn = bool(before) and not before.endswith(b"\n")  # by a kill in the middle of a write
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(("\n" if torn else "") + line + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_record(folder: Path) -> list[dict[str, Any]]:
    """The newest line of each run, as plain data. What a kill has cut short is left out."""
    found = {}
    path = folder / RECORD
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        found[entry["arm"], entry["seed"]] = entry
    return list(found.values())
