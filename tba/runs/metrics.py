"""One record a line to `metrics.jsonl`, always; TensorBoard, W&B and trackio where asked for.

Every record is `{"kind": "train" | "search" | "eval" | "samples" | "event", "step": …, "time": seconds since
start, …}`. The names are explained in docs/metrics.md.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tba.config.text import to_toml
from tba.extras import install_hint
from tba.runs.activity import Activity
from tba.runs.alarms import Alarms
from tba.runs.board_texts import settings_summary, text_summary
from tba.runs.charts import Charts
from tba.runs.time_spent import time_record
from tba.samples.tables import code, markdown_of, table_of
from tba.types import TbaError

METRICS = "metrics.jsonl"
SAMPLES = "samples"
"""The kind of a record of responses, and the name of the list in it."""
Samples = Sequence[Mapping[str, Any]]
"""Responses with all that is known of them: `Sample.record` (`samples/sample.py`)."""


class Sink(Protocol):
    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """One record as charts (`runs/charts.py`). A record may be about an older step than the one before it: an
        evaluation is about the weights that it was made with."""

    def write_samples(self, step: int, samples: Samples) -> None:
        """Responses that were merged after this step. The sink need not show them."""

    def close(self) -> None: ...


class Metrics:
    """Writes records. Lines are appended in one system call each, so several processes may write one file."""

    def __init__(
        self, run: Path, *, elapsed: float = 0.0, sinks: Sequence[Sink] = (), alarms: Alarms | None = None
    ) -> None:
        """`alarms` look at every record; what they say becomes an event."""
        self._file = os.open(run / METRICS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if _is_torn(run / METRICS):
            os.write(self._file, b"\n")  # else the first record would go down with the line before it
        self._start = time.monotonic() - elapsed
        self._sinks = sinks
        self._charts = Charts()
        self._alarms = alarms

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        record = self._write(kind, step, values)
        if self._sinks and kind != "event":
            charts = self._charts.of(record)
            for sink in self._sinks:
                sink.write(kind, step, charts)
        if self._alarms is not None and kind != "event":
            for event in self._alarms.look(record):
                self.write("event", step, event)

    def write_samples(self, step: int, samples: Samples) -> None:
        """Responses that were merged after this step."""
        self._write(SAMPLES, step, {SAMPLES: samples})
        for sink in self._sinks:
            sink.write_samples(step, samples)

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> dict[str, Any]:
        record = {"kind": kind, "step": step, "time": round(self.elapsed, 3), **values}
        os.write(self._file, (json.dumps(_plain(record)) + "\n").encode())
        return record

    def close(self) -> None:
        os.close(self._file)
        for sink in self._sinks:
            sink.close()


def read_metrics(run: Path, kinds: Sequence[str] = ()) -> list[dict[str, Any]]:
    """All records of a run, or those of some kinds, without those that a resume took back: steps done after the
    checkpoint it started from. Lines of other kinds are not parsed, so a few records of a long run are read fast."""
    records: list[dict[str, Any]] = []
    for record in _lines(run / METRICS, (*kinds, "event") if kinds else ()):
        if record.get("event") == "resumed":
            records = [r for r in records if r["kind"] == "event" or r["step"] <= record["step"]]
        records.append(record)
    return [r for r in records if r["kind"] in kinds] if kinds else records


def _lines(path: Path, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    beginnings = tuple(f'{{"kind": "{kind}"'.encode() for kind in kinds)
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            if not kinds or line.startswith(beginnings):
                record = parsed_line(line)
                if record is not None:
                    yield record


def parsed_line(line: bytes) -> dict[str, Any] | None:
    """None for the last line of a process that was killed while writing it."""
    try:
        record: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return record


def _is_torn(path: Path) -> bool:
    """Whether the last line was left without its end, by a crash or a full disk."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity; they become null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


class TensorBoardSink:
    """Event files under `<run>/tensorboard`, through tensorboard's own writer (torch's wrapper loads much more)."""

    def __init__(self, run: Path, settings: Mapping[str, Any] | None = None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(str(run / "tensorboard"))
        if settings:
            self._add(0, text_summary("settings", code(to_toml(settings))))
            self._add(0, settings_summary(settings))

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self._add(step, self._summary(value=[self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]))

    def write_samples(self, step: int, samples: Samples) -> None:
        self._add(step, text_summary(SAMPLES, markdown_of(samples)))

    def _add(self, step: int, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """Weights & Biases. Every record becomes a row of its own, and names the step it is about.

    W&B's own step must not fall: it drops a row that has a lower one, and merges rows that have the same. So records
    are sent without it, and every number is drawn over `train/step`, `search/step` or `eval/step`, which stand in the
    row.
    """

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._module = _tracker("wandb", run, settings)
        self._defined: set[str] = set()

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        axis = f"{kind}/step"
        # Each by its name: where a name matches two patterns, W&B does not say which of them counts.
        for name in [name for name in values if name not in self._defined]:
            self._module.define_metric(name, step_metric=axis)
            self._defined.add(name)
        self._module.log({**values, axis: step})

    def write_samples(self, step: int, samples: Samples) -> None:
        names, rows = table_of(samples)
        self._module.log({f"{SAMPLES}/table": self._module.Table(columns=names, data=rows), f"{SAMPLES}/step": step})

    def close(self) -> None:
        self._module.finish()


class TrackioSink:
    """trackio keeps every row with the step it is given, in whatever order they come."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._module = _tracker("trackio", run, settings)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        self._module.log(dict(values), step=step)

    def write_samples(self, step: int, samples: Samples) -> None:
        names, rows = table_of(samples)
        self._module.log({SAMPLES: self._module.Table(columns=names, data=rows)}, step=step)

    def close(self) -> None:
        self._module.finish()


def _tracker(name: str, run: Path, settings: Mapping[str, Any]) -> Any:
    """The module of a tracker, with a run begun in it."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        raise TbaError(f"metrics.{name} needs the package {name}: {install_hint(name)}") from None
    module.init(project="tba", name=run.name, config=dict(settings))
    return module


def costs(seconds: float, activity: Activity) -> dict[str, float]:
    """What a step cost: its own seconds, the process's time so far by activity, and its memory."""
    return {"step_time": round(seconds, 4), "memory_mb": resident_megabytes(), **time_record(activity)}


def resident_megabytes(pid: int | str = "self") -> float:
    """Memory that a process holds now; NaN where the system does not tell, or it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return math.nan
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
