"""What a process is doing now, and how long it has spent on each thing.

The current activity lies in a small mapped file under the run, rewritten at every change: `tba status` reads it
while the process works, hangs or has died, without asking it anything.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SIZE = 1024
_DETAIL = 120  # characters shown: six bytes each at worst, so that the record is never cut
FOLDER = "processes"


class Activity:
    """`with activity("generate", "8 prompts"):` times the block and shows it. Blocks nest; time goes to the inner."""

    def __init__(self, run: Path | None, name: str) -> None:
        self._name = name
        self._seconds: dict[str, float] = defaultdict(float)
        self._current = ("idle", "")
        self._since = time.monotonic()
        self._notes: dict[str, Any] = {}
        self._map: mmap.mmap | None = None
        if run is not None:
            path = run / FOLDER / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b" " * _SIZE)
            with open(path, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE)
            self._show()

    @contextmanager
    def __call__(self, kind: str, detail: str = "") -> Iterator[None]:
        outer = self._current
        self._switch((kind, detail))
        try:
            yield
        finally:
            self._switch(outer)

    def note(self, **values: Any) -> None:
        """Facts shown beside the activity, such as the step or the version held."""
        self._notes.update(values)

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far by kind of activity."""
        self._switch(self._current)
        return dict(self._seconds)

    def _switch(self, to: tuple[str, str]) -> None:
        now = time.monotonic()
        self._seconds[self._current[0]] += now - self._since
        self._since = now
        if to != self._current:
            self._current = to
            self._show()

    def _show(self) -> None:
        if self._map is None:
            return
        doing, detail = self._current
        record = {"process": self._name, "pid": os.getpid(), "doing": doing, "detail": detail[:_DETAIL]}
        record |= {"since": time.time(), **self._notes}
        self._map[:_SIZE] = json.dumps(record, ensure_ascii=False).encode()[:_SIZE].ljust(_SIZE)


def read_activities(run: Path) -> list[dict[str, Any]]:
    """The last thing each process of a run said it was doing."""
    found = []
    for path in sorted((run / FOLDER).glob("*.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except ValueError:
            continue  # caught in the middle of a change
    return found
