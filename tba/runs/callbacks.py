"""A user's functions, called in the user's own process for each step and each evaluation of a run.

They read what the run writes down, so they hold up nobody but the process that watches the run. A call comes soon after
its step, and in order. A function can end the run: it returns "stop" or raises `StopRun`, and the run ends as after a
Ctrl-C, with a checkpoint. If it raises anything else, the run ends likewise, and then the error is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tba.runs.metrics import Metrics, read_metrics
from tba.runs.progress import NewRecords
from tba.types import TbaError

STOP = "stop"
STOPPED_EARLY = "stopped_early"
"""The event of a run that ends before its last step because it was asked to, by a callback or for lack of progress."""
_METHODS = {"train": "on_step", "eval": "on_evaluation"}


class StopRun(Exception):  # noqa: N818 (it is no error)
    """Raised by a callback to end the run in order."""


class Callback(Protocol):
    """What `callbacks` may hold besides functions; one of the two methods is enough."""

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> str | None:
        """A step was made; `metrics` is its record in `metrics.jsonl` (docs/metrics.md). Returns "stop" to end."""

    def on_evaluation(self, step: int, metrics: Mapping[str, Any]) -> str | None:
        """The weights of this step were evaluated. Returns "stop" to end."""


class Callbacks:
    """Follows a run from now on, and calls."""

    def __init__(self, run: Path, callbacks: Sequence[Any]) -> None:
        check_callbacks(callbacks)
        self._run = run
        self._callbacks = tuple(callbacks)
        self._records = NewRecords(run)
        self._stops = False
        self.error: Exception | None = None
        """What a callback raised, if it was not `StopRun`."""

    def poll(self) -> bool:
        """Call for all that is new. Whether the run is to end; from then on nobody is called."""
        if self._callbacks and not self._stops:
            for record in self._records.read():
                if record["kind"] in _METHODS and self._call(record):
                    self._stops = True
                    self._tell(record)
                    break
        return self._stops

    def _call(self, record: Mapping[str, Any]) -> bool:
        """Call everybody, also those after one that wants to end."""
        wanted = False
        for callback in self._callbacks:
            method = getattr(callback, _METHODS[record["kind"]], callback if callable(callback) else None)
            if method is None:
                continue
            try:
                wanted |= method(record["step"], dict(record)) == STOP
            except StopRun:
                wanted = True
            except Exception as error:  # the user's code: the run is to end in order whatever it raises
                self.error, wanted = error, True
        return wanted

    def _tell(self, record: Mapping[str, Any]) -> None:
        message = "a callback asked for the end" if self.error is None else f"a callback failed: {self.error!r}"
        metrics = Metrics(self._run, elapsed=record["time"])
        metrics.write("event", record["step"], {"event": STOPPED_EARLY, "message": message})
        metrics.close()


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """TbaError for what can never be called."""
    for callback in callbacks:
        if not callable(callback) and not any(hasattr(callback, name) for name in _METHODS.values()):
            raise TbaError(
                f"callback {callback!r} is neither a function of (step, metrics) nor an object with on_step or "
                "on_evaluation"
            )


def was_stopped_early(run: Path) -> bool:
    """Whether the run was asked to end before its last step, and has not been resumed since."""
    ends = [r["event"] for r in read_metrics(run, ("event",)) if r["event"] in (STOPPED_EARLY, "resumed")]
    return ends[-1:] == [STOPPED_EARLY]
