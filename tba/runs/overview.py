"""What there is to say of each run below a folder, in a row, for `tba runs` and for whoever wants the newest one.

A folder with runs in it, as a sweep leaves one, is a row too. What cannot be read is a row that says why, and never the
end of the others.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tba.runs.folder import last_started
from tba.runs.records import read_evaluations
from tba.runs.run_config import CONFIG
from tba.runs.state import Standing, State, check_is_run, read_settings, standing_of
from tba.runs.summary import headline_of_run
from tba.types import TbaError

_NOT_RUNS = ("data", "configs", "logs")
"""Folders beside runs that tba itself makes: rows that were given from Python, and what a sweep keeps."""


@dataclass(frozen=True)
class RunRow:
    """A run."""

    path: Path
    task: str
    model: str
    standing: Standing
    metric: str
    """What it is judged by, such as `accuracy`."""
    first: float | None
    """That number before training; None if it was evaluated once only."""
    last: float | None
    """As it was evaluated last."""
    started: float
    """When it was last started or resumed, in seconds since 1970."""
    seconds: float
    """How long it has run."""
    num_bytes: int


@dataclass(frozen=True)
class FolderRow:
    """A folder of runs, such as a sweep's."""

    path: Path
    states: Mapping[State, int]
    started: float
    """When the newest of them was started."""
    num_bytes: int


@dataclass(frozen=True)
class Unreadable:
    """A folder that is no run, or a broken one."""

    path: Path
    why: str


Row = RunRow | FolderRow | Unreadable


def rows_below(root: Path) -> list[Row]:
    """Newest first, then what cannot be read. TbaError if there is no such folder."""
    rows = [_row(path) for path in _folders(root)]
    known = [row for row in rows if not isinstance(row, Unreadable)]
    broken = [row for row in rows if isinstance(row, Unreadable)]
    return [*sorted(known, key=lambda row: -row.started), *sorted(broken, key=lambda row: row.path)]


def is_run(path: Path) -> bool:
    return (path / CONFIG).is_file()


def runs_in(folder: Path) -> list[Path]:
    """The runs that lie in a folder itself."""
    return [path for path in _folders(folder) if is_run(path)]


def _row(path: Path) -> Row:
    try:
        if is_run(path):
            return run_row(path)
        inner = [run for run in runs_in(path) if _has_settings(run)]
        if inner:
            count = Counter(standing_of(run).state for run in inner)
            states = {state: count[state] for state in State if count[state]}
            return FolderRow(path, states, max(map(last_started, inner)), size_on_disk(path))
        return Unreadable(path, f"there is no {CONFIG} in it")
    except TbaError as error:
        return Unreadable(path, str(error).removeprefix(f"{path} "))
    except OSError as error:
        return Unreadable(path, f"it cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:  # somebody else's files
        return Unreadable(path, f"its files are not those of a run ({type(error).__name__}: {error})")


def _has_settings(run: Path) -> bool:
    try:
        check_is_run(run)
    except TbaError:
        return False
    return True


def run_row(run: Path) -> RunRow:
    check_is_run(run)
    settings, standing = read_settings(run), standing_of(run)
    metric, first, last = _headline(run, standing)
    started = last_started(run)
    is_young = standing.state is State.RUNNING and not standing.seconds
    return RunRow(
        path=run,
        task=_text(settings, "task", "kind"),
        model=_text(settings, "model", "path"),
        standing=standing,
        metric=metric,
        first=first,
        last=last,
        started=started,
        seconds=max(0.0, time.time() - started) if is_young else standing.seconds,
        num_bytes=size_on_disk(run),
    )


def size_on_disk(folder: Path) -> int:
    """Bytes that its files take, without those that links lead to."""
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += 512 * entry.stat(follow_symlinks=False).st_blocks
        except OSError:
            continue  # gone meanwhile, as what is written aside is, or not ours to read
    return total


def _headline(run: Path, standing: Standing) -> tuple[str, float | None, float | None]:
    """By the summary where it is up to date; else by the evaluations so far."""
    headline = headline_of_run(run)
    name = headline.summary_name
    if standing.summary is not None and standing.state is not State.RUNNING:
        found = standing.summary
        if found.get(f"{name}_last") is not None:
            return headline.metric, found.get(f"{name}_first"), found[f"{name}_last"]
    evals = read_evaluations(run)
    metric = headline.metric_of(evals[-1]) if evals else headline.metric
    values = [value for record in evals if (value := record.get(metric)) is not None]
    return metric, values[0] if len(values) > 1 else None, values[-1] if values else None


def _text(settings: Mapping[str, Any], section: str, key: str) -> str:
    """`[model] path = …`, or `model = …`, as other tools may have written it."""
    value = settings.get(section)
    return str(value.get(key, "–")) if isinstance(value, Mapping) else str(value or "–")


def _folders(root: Path) -> Sequence[Path]:
    try:
        return list(_children(root))
    except FileNotFoundError:
        raise TbaError(
            f"there is no folder {root}: runs are made in run.root, which is `runs` unless you set it"
        ) from None
    except OSError as error:
        raise TbaError(f"cannot read {root}: {error.strerror}") from None


def _children(root: Path) -> Iterator[Path]:
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith(".") and entry.name not in _NOT_RUNS:
                yield root / entry.name
