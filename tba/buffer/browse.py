"""Reads a part of the rollout log: some columns of some rows, by their numbers. For looking at, not for training.

Reads only, so the run may be going on. What is not asked for is not read: columns, and row groups of large files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tba.buffer.log_files import LogFile, in_order, read_rows, row_counts


@dataclass(frozen=True)
class Piece:
    """Whole merges that lie together in a file."""

    path: Path
    row_group: int
    first_row: int
    """The number of its first row in the log."""
    num_rows: int

    def read(self, names: Sequence[str]) -> pa.Table:
        """These columns of all its rows, as today's tba has them."""
        return read_rows(self.path, self.row_group, names)


def pieces_of(log: Path) -> list[Piece]:
    """The whole log, in order. A file of a run that is going on may be gone when it is read, because it was joined with
    others: that is a TbaError, after which one begins anew."""
    found = [file for path in log.glob("*.parquet") if (file := LogFile.parse(path.name))]
    return list(_pieces([log / file.name for file in in_order(found, log)[0]]))


def _pieces(paths: Sequence[Path]) -> Iterator[Piece]:
    first_row = 0
    for path in paths:
        for row_group, num_rows in enumerate(row_counts(path)):
            yield Piece(path, row_group, first_row, num_rows)
            first_row += num_rows
