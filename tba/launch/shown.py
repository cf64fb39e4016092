"""What a launcher shows before the processes of a run do: its own activity, and when the user's time began."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tba.runs.activity import LAUNCHER, Activity

IMPORTING = "importing torch and transformers"


def _to_nobody(line: str) -> None: ...


def _silently() -> None: ...


@dataclass(frozen=True)
class Shown:
    """The user's view of a run, as a launcher sees it."""

    started: float = field(default_factory=time.time)
    """When the run was asked for, by the clock: its time counts from there."""
    tell: Callable[[str], None] = _to_nobody
    """Shows a line."""
    stopping: Callable[[], None] = _silently
    """Says that the run is about to stop. A signal handler calls it, so it must not wait for anything."""


@contextmanager
def preparing(run: Path) -> Iterator[Activity]:
    """The launcher is seen among the processes of the run until the end of the block."""
    activity = Activity(run, LAUNCHER)
    try:
        yield activity
    finally:
        activity.withdraw()
