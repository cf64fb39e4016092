"""What a process is doing now, how long it has spent on each thing, and a sign of life.

The current activity lies in a small mapped file under the run, rewritten at every change: `tba status` reads it
while the process works, hangs or has died, without asking it anything. With it stands a beat, the time of the last
change or step of work. Whoever watches the process takes one whose beat stays the same for stuck. Work of known length
shows how much of it is done. The words for all this are in `phases.py`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

_SIZE = 2048
_LIST_SECONDS = 1.0  # between two looks for new files
_BEAT_SECONDS = 0.5  # beats that follow each other faster are not written: one costs more than a small model's step
_DETAIL = 120  # characters shown: six bytes each at worst, so that the record is never cut
PROCESSES = "processes"
TRAINER = "trainer"
"""The Trainer's name as a process. A Searcher's is `SearcherName.process`."""
LAUNCHER = "launcher"
"""The name under which a launcher shows what it does before the processes of a run are started, and only then."""
PREPARING = "prepare"
"""What a launcher is doing then."""
SILENT_SECONDS = 60.0
"""From which on a process without a sign of life is worth a word; `run.stuck_seconds` says when to act."""
STARTING = "start"
"""What a process is doing until it can begin its work."""
JOINING = "join"
"""What a Searcher is doing between the end of its start and the Trainer's first weights."""
ENDING = "finish"
"""What the Trainer is doing from its last step on, while Searchers evaluate what it has made."""
IDLE, TURN = "idle", "turn"
"""What a process is doing between two activities: the little that has no name; or, where Trainer and Searchers take
turns in one process, waiting for its turn."""

WAITING = frozenset({"fill", "wait", "search", "score", "send", JOINING, ENDING, TURN})
"""Activities in which a process waits for another one: the Trainer for groups (`fill`, `wait`), for its turn (`search`)
and for the last reports (`finish`); a Searcher for the first weights (`join`), for newer ones (`wait`), for rewards
(`score`), for the Trainer to take groups (`send`) and for its turn (`turn`)."""
PUBLISHING = frozenset({"publish"})
"""Activities that pass weights on. What is neither here nor in `WAITING` is work."""
SEARCHING = frozenset({"generate", "reference", "evaluate"})
"""What a Searcher is there for: not its start, nor loading weights."""


@dataclass(frozen=True)
class Doing:
    """An activity as it is shown."""

    kind: str
    detail: str = ""
    total: int = 0
    """Its length in units, if that is known."""
    unit: str = ""
    done: int = 0

    def record(self) -> dict[str, Any]:
        length = {"done": self.done, "total": self.total, "unit": self.unit} if self.total else {}
        return {"doing": self.kind, "detail": self.detail[:_DETAIL], **length}


class Activity:
    """`with activity("generate", "8 prompts"):` times the block and shows it. Blocks nest; time goes to the inner.

    Work of known length says so, `activity("evaluate", "first evaluation", total=64, unit="prompts")`, and then how
    much of it is done, by `reached` or `advance`.
    """

    def __init__(self, run: Path | None, name: str, *, between: str = IDLE) -> None:
        """`between`: what time outside of all blocks counts as, `IDLE` or `TURN`."""
        self._name = name
        self._seconds: dict[str, float] = defaultdict(float)
        self._between = self._current = Doing(between)
        self._began = self._since = self._beat = time.monotonic()
        self._counted_until = time.time()
        self._shown_since = time.time()
        self._notes: dict[str, Any] = {}
        self._num_quiet = 0
        self._beater: threading.Thread | None = None
        self._writing = threading.Lock()
        self._map: mmap.mmap | None = None
        if run is not None:
            self._path = run / PROCESSES / f"{name}.json"
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(b" " * _SIZE)
            with open(self._path, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), _SIZE)
            self._show()

    @contextmanager
    def __call__(self, kind: str, detail: str = "", *, total: int = 0, unit: str = "") -> Iterator[None]:
        outer, since = self._current, self._shown_since
        self._switch(Doing(kind, detail, total, unit))
        try:
            yield
        finally:
            self._switch(outer, None if outer == self._between else since)

    def reached(self, done: int) -> None:
        """So much of the current activity is done. It is a sign of life."""
        self._current = replace(self._current, done=min(done, self._current.total))
        self.beat()

    def advance(self, done: int = 1) -> None:
        """So much more of it is done."""
        self.reached(self._current.done + done)

    def beat(self) -> None:
        """Say that the work goes on: at every step of something long, however short the step."""
        if time.monotonic() - self._beat >= _BEAT_SECONDS:
            self._show()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Around something long that has no steps to tell of and a limit or a watch of its own: another process, a
        download, a disk. A thread beats meanwhile, so that only a process that does not run at all is silent.
        """
        self._num_quiet += 1
        if self._map is not None and self._beater is None:
            self._beater = threading.Thread(target=_beat_while_quiet, args=(weakref.ref(self),), daemon=True)
            self._beater.start()
        try:
            yield
        finally:
            self._num_quiet -= 1

    def note(self, **values: Any) -> None:
        """Facts shown beside the activity, such as the step or the version held."""
        self._notes.update(values)

    def seconds(self) -> dict[str, float]:
        """Seconds spent so far by kind of activity."""
        self._switch(self._current)
        return dict(self._seconds)

    def seconds_since_start(self) -> float:
        """From the making of this object to the last moment that `seconds` counts: the sum of what that returns, but
        measured, and not added up."""
        return self._since - self._began

    def withdraw(self) -> None:
        """Show nothing any more: there is no such process from now on."""
        with self._writing:
            if self._map is not None:
                self._map = None
                self._path.unlink(missing_ok=True)

    def _switch(self, to: Doing, since: float | None = None) -> None:
        """`since`: when the activity began, if this goes back to it."""
        now = time.monotonic()
        self._seconds[self._current.kind] += now - self._since
        self._since, self._counted_until = now, time.time()
        if to != self._current:
            self._current = to
            self._shown_since = since or time.time()
            self._show()
        else:
            self.beat()

    def _show(self) -> None:
        self._beat = time.monotonic()
        with self._writing:  # or a beat of the other thread could bring back what is over
            if self._map is None:
                return
            record = {"process": self._name, "pid": os.getpid(), **self._current.record()}
            searched = sum(self._seconds.get(kind, 0.0) for kind in SEARCHING)
            record |= {"searched": round(searched, 6), "counted_until": self._counted_until}
            record |= {"since": self._shown_since, "beat": time.time(), **self._notes}
            text = json.dumps(record, ensure_ascii=False).encode()
            self._map[:_SIZE] = _signed(text)[:_SIZE].ljust(_SIZE)


def _beat_while_quiet(of: weakref.ref[Activity]) -> None:
    while (activity := of()) is not None:
        if activity._num_quiet:
            activity.beat()
        del activity
        time.sleep(_BEAT_SECONDS)


def seconds_searched(activity: Mapping[str, Any], now: float) -> float:
    """How long a process has been searching until `now`, by the clock of this machine, from what it shows."""
    running = now - activity["counted_until"] if activity["doing"] in SEARCHING else 0.0
    return float(activity["searched"]) + max(0.0, running)


def silences(activities: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds without a sign of life, by name, by the clock of this machine. Where several take turns in one process,
    a sign of one is a sign of all."""
    beats: dict[int, float] = {}
    for activity in activities:
        beat = float(activity.get("beat", activity["since"]))
        beats[activity["pid"]] = max(beat, beats.get(activity["pid"], beat))
    return {activity["process"]: time.time() - beats[activity["pid"]] for activity in activities}


def read_activities(run: Path) -> list[dict[str, Any]]:
    """The last thing each process of a run said it was doing."""
    shown = (_parsed(path.read_bytes()) for path in sorted((run / PROCESSES).glob("*.json")))
    return [activity for activity in shown if activity is not None]


def forget_activities(run: Path) -> None:
    """Before processes of a run are started: what their forerunners did last is no news."""
    for path in (run / PROCESSES).glob("*.json"):
        path.unlink(missing_ok=True)


class OpenActivities:
    """Reads what the processes of a run are doing many times, in some microseconds: it keeps the files open.
    A process that is started again under its name writes into the same file."""

    def __init__(self, run: Path) -> None:
        self._folder = run / PROCESSES
        self._files: dict[Path, int] = {}
        self._listed = -math.inf

    def read(self) -> list[dict[str, Any]]:
        """As `read_activities`. Those that began to show something within the last second may be missing."""
        now = time.monotonic()
        if now - self._listed >= _LIST_SECONDS:
            self._listed = now
            for path in self._folder.glob("*.json"):
                if path not in self._files:
                    self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        shown = (_parsed(os.pread(file, _SIZE, 0)) for file in self._files.values())
        return [activity for activity in shown if activity is not None]

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()


def _signed(text: bytes) -> bytes:
    """With its checksum on a second line. Who reads in the middle of a change sees parts of two records, which may even
    be JSON together."""
    return text + b"\n" + xxhash.xxh3_64_hexdigest(text).encode()


def _parsed(data: bytes) -> dict[str, Any] | None:
    """None: caught in the middle of a change."""
    text, _, checksum = data.rstrip().rpartition(b"\n")
    if text and xxhash.xxh3_64_hexdigest(text).encode() != checksum:
        return None
    try:
        activity: dict[str, Any] = json.loads(text or data)  # without a checksum: of an earlier version
    except ValueError:
        return None
    return activity
