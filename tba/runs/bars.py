"""What a command of one process is doing: its phases, with a bar on a terminal, and in plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from tba.runs.plain_lines import seconds_between
from tba.runs.terminal import can_redraw, terminal
from tba.runs.wording import clock


class _IfLong(ProgressColumn):
    """Another column, for phases of known length only."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> RenderableType:
        return Text("") if task.total is None else self._column(task)


class Work:
    """One phase after the other: `begin` ends the one before. The clock runs from the making of this object."""

    def __init__(self, console: Console | None = None, clock_now: Callable[[], float] = time.monotonic) -> None:
        self._console = console or terminal()
        self._now = clock_now
        self._begun = clock_now()
        bar = BarColumn(style="bright_black", complete_style="magenta", finished_style="green")
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            *map(_IfLong, (bar, MofNCompleteColumn(), TextColumn("{task.fields[unit]}"))),
            TimeElapsedColumn(),
            _IfLong(TimeRemainingColumn()),
            transient=True,
            console=self._console,
            disable=not can_redraw(self._console),
        )
        self._what, self._total, self._unit, self._done = "", 0, "", 0
        self._phase_begun = self._last_line = self._begun
        self._writing = threading.Lock()

    def __enter__(self) -> Work:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """Since the phase began."""
        return self._now() - self._phase_begun

    def begin(self, what: str, total: int = 0, unit: str = "", *, silently: bool = False) -> None:
        """`total`: its length in units, if that is known. `silently`: no line for it, as before it is known whether
        there is anything to do."""
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._phase_begun = self._now()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(what, total=total or None, unit=unit)
        if not silently:
            self._line(what)

    def reached(self, done: int, note: str = "", total: int = 0) -> None:
        """So much of the phase is done. `total`: its length, if that was not known before."""
        self._done, self._total = done, total or self._total
        text = f"{self._what}: {note}" if note else self._what
        for task in self._bar.task_ids:
            self._bar.update(task, completed=done, total=self._total or None, description=text)
        now = self._now()
        if done == self._total or now - self._last_line >= seconds_between(now - self._begun):
            phrases = [f"{self._what}: {done:,}/{self._total:,} {self._unit}".rstrip(), note, self._left()]
            self._line(" · ".join(filter(None, phrases)))

    def advance(self, done: int = 1) -> None:
        with self._writing:  # evaluations tell of what is done from several threads
            self.reached(self._done + done)

    def say(self, line: str) -> None:
        """A line for itself."""
        self._console.print(line, soft_wrap=True)

    def _left(self) -> str:
        if not 0 < self._done < self._total:
            return ""
        return f"{clock(self.seconds / self._done * (self._total - self._done))} left"

    def _line(self, text: str) -> None:
        self._last_line = self._now()
        if self._bar.disable:
            self._console.print(f"{clock(self._now() - self._begun)} {text}", soft_wrap=True)
