"""The record of draws: which rows of the rollout log each step was trained on, one line a step.

    {"step": 12, "rows": [[40, 7, 41], [3, 3, 12]]}     G groups of K rows

Rows are counted from 0 over the whole log, in the order of the merges. That is the order in which trajectories arrive
in the buffer, so an arrival number is a row number. This file and the log are all the data that a run was trained on.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tba.types import TbaError

DRAWS = "draws.jsonl"

Rows = NDArray[np.int64]
"""(G, K): the row of the rollout log of each trajectory of a step."""


class DrawLog:
    """Writes the record of one run. The file is there once a step is: what draws nothing leaves nothing."""

    def __init__(self, run: Path) -> None:
        self._path = run / DRAWS
        self._file: int | None = None

    def append(self, step: int, rows: Sequence[Sequence[int]]) -> None:
        """Add the draw of a step, the one after the last. An OSError (a full disk) may leave a part of its line."""
        line = (json.dumps({"step": step, "rows": rows}, separators=(",", ":")) + "\n").encode()
        file = self._open()
        while line:  # one system call, unless the disk takes a part only
            line = line[os.write(file, line) :]

    def flush(self) -> None:
        """Make what was appended safe on disk, as the log is at a checkpoint."""
        if self._file is not None:
            os.fsync(self._file)

    def go_back_to(self, step: int) -> None:
        """Remove the draws of later steps, which will be made again, and what a crash left of a line."""
        if not self._path.exists():
            return
        self.close()
        partial = self._path.with_name(f".{DRAWS}.partial")
        with open(self._path, "rb") as old, open(partial, "wb") as new:
            new.writelines(line for line in old if line.endswith(b"\n") and _step_of(line) <= step)
            new.flush()
            os.fsync(new.fileno())
        os.replace(partial, self._path)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        return self._file


def read_draws(run: Path, num_steps: int | None = None) -> list[Rows]:
    """The draws of the first `num_steps` steps, or of all that are complete: of step 1 first.

    What follows the end of the last line is being written, or was when its process was killed. TbaError if the steps
    asked for are not all there.
    """
    path = run / DRAWS
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        raise TbaError(f"{run} has no {DRAWS}: only runs that record their draws can be replayed") from None
    if lines and _step_of(lines[0]) > 1:
        raise TbaError(f"{path} begins at step {_step_of(lines[0])}: only runs recorded from step 1 can be replayed")
    draws: list[Rows] = []
    for number, line in enumerate(lines[:num_steps], 1):
        rows = _rows_of(line, number)
        if rows is None:
            raise TbaError(f"line {number} of {path} is not the draw of step {number}: restore it{_or_fewer(number)}")
        draws.append(rows)
    if not draws:
        raise TbaError(f"{run} has made no step yet: there is nothing to replay")
    if num_steps is not None and len(draws) < num_steps:
        raise TbaError(f"{run} has recorded {len(draws)} steps, which is fewer than {num_steps}: replay at most those")
    return draws


def recorded_draws(run: Path) -> Iterator[Rows]:
    """The draws that are on record, from the first of them on, whichever step that is of. None if there is no file."""
    if (run / DRAWS).exists():
        with open(run / DRAWS, "rb") as file:
            for line in file:
                rows = _rows_of(line, _step_of(line))
                if rows is not None:
                    yield rows


def times_drawn(run: Path, rows: Sequence[int], after_step: int = 0) -> tuple[NDArray[np.int64], int]:
    """How often each of these rows was drawn by the steps after this one, and which step the last on record is."""
    wanted, place_of = np.unique(np.array(rows, np.int64), return_inverse=True)
    counts = np.zeros(len(wanted), np.int64)
    lines = (run / DRAWS).read_bytes().split(b"\n")[:-1] if (run / DRAWS).exists() else []
    for line in lines[bisect_right(lines, after_step, key=_step_of) :]:
        drawn = _rows_of(line, _step_of(line))
        if drawn is not None:
            numbers, times = np.unique(drawn, return_counts=True)
            _, here, there = np.intersect1d(wanted, numbers, assume_unique=True, return_indices=True)
            counts[here] += times[there]
    return counts[place_of], _step_of(lines[-1]) if lines else 0


def _or_fewer(step: int) -> str:
    return f", or replay the steps before it with --steps {step - 1}" if step > 1 else ""


def _rows_of(line: bytes, step: int) -> Rows | None:
    """The rows in the line of this step; None if that is not what the line holds."""
    try:
        record = json.loads(line)
        rows = np.array(record["rows"]) if record["step"] == step else np.empty(0)
    except (ValueError, KeyError, TypeError):
        return None
    good = rows.ndim == 2 and rows.size > 0 and rows.dtype.kind == "i" and rows.min() >= 0
    return rows.astype(np.int64) if good else None


def _step_of(line: bytes) -> int:
    """The step that a line is of; 0 if it cannot be told."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 0
