"""What a run has reached, gathered from its metrics file as it grows. No terminal in here."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tba.runs.alarms import raised
from tba.runs.metrics import METRICS, SAMPLES
from tba.tasks import Headline
from tba.types import SearcherName

_WINDOW = 20


class NewRecords:
    """Follows `metrics.jsonl` as it grows. A line that is being written is waited for."""

    def __init__(self, run: Path, *, from_start: bool = False) -> None:
        """What a resumed run wrote before is passed over, unless it is to be read `from_start`."""
        self._path = run / METRICS
        self._offset = self._path.stat().st_size if self._path.exists() and not from_start else 0
        self._partial = b""

    def read(self) -> list[dict[str, Any]]:
        """The records since the last call."""
        if not self._path.exists():
            return []
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


class RunProgress:
    """Follows `metrics.jsonl`: each `update` reads the lines that are new."""

    def __init__(
        self, run: Path, num_steps: int, headline: Headline, *, step: int = 0, from_start: bool = False
    ) -> None:
        """A resumed run begins at `step`. What it wrote before is passed over, unless it is to be read
        `from_start`."""
        self.num_steps = num_steps
        self.headline = headline
        self.step = step
        self.elapsed = 0.0
        self.train: dict[str, Any] = {}
        self.searchers: dict[str, dict[str, Any]] = {}
        self.evals: list[tuple[int, float]] = []
        self.judged_by = headline.metric
        self._searches: deque[dict[str, Any]] = deque(maxlen=_WINDOW)
        self.num_failed = 0
        self.samples: list[dict[str, Any]] = []
        """The newest responses that the Trainer has shown."""
        self._alarms: list[dict[str, Any]] = []
        self._step_times: deque[tuple[int, float]] = deque(maxlen=50)
        self._records = NewRecords(run, from_start=from_start)

    def update(self) -> list[dict[str, Any]]:
        """Take in new records; the ones worth a line of their own (evaluations and events) are returned."""
        told = []
        for record in self._records.read():
            self.elapsed = max(self.elapsed, record["time"])
            if record["kind"] == "train":
                self._take_step(record)
            elif record["kind"] == "search":
                self.searchers[SearcherName.read(record["source"]).process] = record
                self._searches.append(record)
                self.num_failed += record["failed"]
            elif record["kind"] == SAMPLES:
                self.samples = record[SAMPLES]
            else:
                if record["kind"] == "eval":
                    self._take_evaluation(record)
                elif "alarm" in record:
                    self._alarms.append(record)
                told.append(record)
        return told

    @property
    def alarms(self) -> dict[str, str]:
        """Those that stand now, by name, with their messages."""
        return raised(self._alarms)

    @property
    def reward(self) -> float | None:
        """Mean reward of new responses, lately: that of drawn ones depends on what is drawn."""
        return self.lately("reward")

    @property
    def rewards(self) -> dict[str, float | None]:
        """The same of each reward function, by its name."""
        names = dict.fromkeys(name for r in self._searches for name in r if _is_of_a_function(name))
        return {name.split("/")[1]: self.lately(name) for name in names}

    @property
    def tokens_per_second(self) -> float:
        """That Searchers generate, all together."""
        return sum(float(record["tokens_per_second"]) for record in self.searchers.values())

    def lately(self, name: str) -> float | None:
        """Mean of a number in the latest reports of Searchers; None if none of them has it."""
        values = [record[name] for record in self._searches if record.get(name) is not None]
        return sum(values) / len(values) if values else None

    @property
    def seconds_left(self) -> float | None:
        if len(self._step_times) < 2 or self.step >= self.num_steps:
            return None
        (first, start), (last, end) = self._step_times[0], self._step_times[-1]
        return (end - start) / max(1, last - first) * (self.num_steps - self.step)

    def _take_evaluation(self, record: dict[str, Any]) -> None:
        self.judged_by = self.headline.metric_of(record)
        value = record.get(self.judged_by)
        if value is not None:
            self.evals.append((record["step"], value))

    def _take_step(self, record: dict[str, Any]) -> None:
        self.step = record["step"]
        self.train = record
        self._step_times.append((record["step"], record["time"]))


def _is_of_a_function(name: str) -> bool:
    return name.startswith("rewards/") and name.endswith("/mean") and name.count("/") == 2


def evaluation_text(record: Mapping[str, Any], headline: Headline) -> str:
    """The number an evaluation is judged by, and what that must not be read without."""
    name = headline.metric_of(record)
    value, error = record.get(name), record.get(f"{name}_se")
    text = f"{name.replace('_', ' ')} " + ("–" if value is None else f"{value:.3f}")
    text += f" ± {error:.3f}" if error is not None else ""
    others = [b for b in headline.beside if b.label and b.metric != name and record.get(b.metric) is not None]
    return ", ".join([text, *(f"{b.label} {record[b.metric]:{b.form}}" for b in others)])
