"""The groups that a run was trained on, step by step, from its rollout log and its record of draws.

Reads only, so the run may be going on: its log may grow and join its files meanwhile. Of the log, no more is held than
the rows that a later step still needs, and the part of a file that is being read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tba.buffer.arrow import from_table
from tba.buffer.draws import DRAWS, Rows
from tba.buffer.log_files import LogFile, between, in_order, naming, read_tables
from tba.types import Group, Prompt, TbaError, Trajectory

_MAX_LOOKS = 3
"""How often a file is looked for before it counts as missing: one look at a directory in which files are being joined
may find neither the old ones nor the new one, or an old one that is gone before it is opened."""

Row = tuple[int, Prompt, Trajectory]


def recorded_groups(log: Path, draws: Sequence[Rows]) -> Iterator[list[Group]]:
    """The groups of each step, from step 1 on, equal to those that were drawn. TbaError if the log lacks a row."""
    last_use = _last_use(draws)
    rows = _rows(log, last_use > 0)
    held: dict[int, tuple[Prompt, Trajectory]] = {}
    num_read = 0
    for step, drawn in enumerate(draws, 1):
        while num_read <= drawn.max():
            row = next(rows, None)
            if row is None:
                why = f"{log} has no row {drawn.max()}, which step {step} was trained on"
                raise TbaError(f"{why}: restore its last files" + (f", or add --steps {step - 1}" if step > 1 else ""))
            num_read = row[0] + 1
            held[row[0]] = row[1:]
        yield [_group([held[row] for row in rows_K], log, step) for rows_K in drawn.tolist()]
        for number in np.unique(drawn).tolist():
            if last_use[number] == step:
                del held[number]


def _last_use(draws: Sequence[Rows]) -> NDArray[np.int64]:
    """For each row, the last step that draws it; 0 if none does."""
    last_use = np.zeros(1 + max(int(rows.max()) for rows in draws), np.int64)
    for step, rows in enumerate(draws, 1):
        last_use[rows] = step
    return last_use


def _group(drawn: Sequence[tuple[Prompt, Trajectory]], log: Path, step: int) -> Group:
    if any(prompt != drawn[0][0] for prompt, _ in drawn):
        raise TbaError(f"{log} and {DRAWS} do not belong together: a group of step {step} has rows of several prompts")
    return Group(drawn[0][0], tuple(trajectory for _, trajectory in drawn))


def _rows(log: Path, is_wanted: NDArray[np.bool_]) -> Iterator[Row]:
    """The rows wanted, in order, with their numbers."""
    first = 0
    for path, table in _tables(log):
        here = np.flatnonzero(is_wanted[first : first + table.num_rows])
        with naming(path):
            groups = [group for _, merge in from_table(table.take(here)) for group in merge]
        numbers = iter((first + here).tolist())
        yield from ((next(numbers), group.prompt, trajectory) for group in groups for trajectory in group.trajectories)
        first += table.num_rows
        if first >= len(is_wanted):
            return


def _tables(log: Path) -> Iterator[tuple[Path, pa.Table]]:
    """The whole log in order, some merges at a time, each with the file it was in."""
    merge = num_looks = 0
    while num_looks < _MAX_LOOKS:
        num_looks += 1
        try:
            file = _file_with(merge, log)
            if file is None:
                continue
            for table in read_tables(log / file.name):
                new = between(table, merge, file.stop)
                if new.num_rows:
                    yield log / file.name, new
                    merge = int(new["merge"][-1].as_py()) + 1
            merge, num_looks = file.stop, 0
        except TbaError:
            if num_looks == _MAX_LOOKS:
                raise


def _file_with(merge: int, log: Path) -> LogFile | None:
    """The file that holds this merge; None if the log ends before it."""
    found = [file for path in log.glob("*.parquet") if (file := LogFile.parse(path.name))]
    return next((file for file in in_order(found, log)[0] if file.stop > merge), None)
