"""Reads a part of the rollout log: some columns of some rows, by their numbers. For looking at, not for training.

Reads only, so the run may be going on. What is not asked for is not read: columns, and row groups of large files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tba.buffer.log_files import LogFile, in_order, read_rows, row_counts

GROUP = ("merge", "source", "serial")
"""The columns that name a group. Rows of a group lie together."""


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


def holding(pieces: Sequence[Piece], numbers: Sequence[int]) -> Iterator[tuple[Piece, NDArray[np.int64]]]:
    """The pieces that hold rows of these numbers, each with the numbers that it holds."""
    asked = np.array(numbers, np.int64)
    places = np.searchsorted([piece.first_row for piece in pieces], asked, side="right") - 1
    for place in np.unique(places).tolist():
        yield pieces[place], asked[places == place]


def group_numbers(table: pa.Table) -> NDArray[np.int64]:
    """For each row of a table with the columns of `GROUP`, how many groups begin up to it."""
    keys = [table[name].to_numpy(zero_copy_only=False) for name in GROUP]
    begins = np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0))
    return np.cumsum(begins)


def _pieces(paths: Sequence[Path]) -> Iterator[Piece]:
    first_row = 0
    for path in paths:
        for row_group, num_rows in enumerate(row_counts(path)):
            yield Piece(path, row_group, first_row, num_rows)
            first_row += num_rows
