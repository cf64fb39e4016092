"""For how long each process of a run has given no sign of life."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

LONGEST_LOOK = 5.0
"""Seconds that count between two looks. When there were more, the one who looks was stopped itself, and with it,
probably, everybody else: by Ctrl-Z, or a machine that was put to sleep."""


class Silence:
    """Compares what processes show from look to look, by the clock of the one who looks: theirs may jump."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_look = clock()
        self._seen: dict[str, tuple[object, object]] = {}
        self._seconds: dict[str, float] = {}
        self._has_shown: set[str] = set()

    def begin(self, process: str, activities: Iterable[Mapping[str, Any]]) -> None:
        """The process is about to be started. What a forerunner has left to be seen is no news."""
        self._seconds[process] = 0.0
        self._seen.update({a["process"]: _shown(a) for a in activities if a["process"] == process})
        self._has_shown.discard(process)

    def look(self, activities: Iterable[Mapping[str, Any]]) -> None:
        now = self._clock()
        passed, self._last_look = min(now - self._last_look, LONGEST_LOOK), now
        for process in self._seconds:
            self._seconds[process] += passed
        for activity in activities:
            process = activity["process"]
            if self._seen.get(process) != _shown(activity):
                self._seen[process] = _shown(activity)
                self._seconds[process] = 0.0
                self._has_shown.add(process)

    def seconds(self, process: str) -> float:
        return self._seconds[process]

    def has_shown(self, process: str) -> bool:
        """Whether it has given any sign of life since it was started."""
        return process in self._has_shown


def _shown(activity: Mapping[str, Any]) -> tuple[object, object]:
    return activity["pid"], activity.get("beat")
