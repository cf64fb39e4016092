"""The rollout log: every merged group, in Parquet files that pandas and DuckDB read as they are.

It is also the buffer's write-ahead log: a checkpoint keeps a `position`, and merging again what `read` yields up to
there rebuilds the buffer. A merge is one small file; a checkpoint joins those since the last one:

    000000000-000000099.parquet     merges 0 to 99, joined
    000000100.parquet               a merge since
    _superseded/1/…                 set aside: merged after the checkpoint from which the run was resumed

Files appear whole or not at all, and each knows the last serial of every source so far. A file whose merges all are
in another one was left by a crash while joining: it does not count, and the next open removes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tba.buffer.arrow import RowOf, from_table, no_row, to_table, warm_up
from tba.buffer.check import check_groups
from tba.buffer.log_files import LogFile, Serials, between, in_order, naming, read_serials, read_tables, regroup, write
from tba.types import Group, TbaError, Version


class RolloutLog:
    """The log in one directory. Only one process may have it open; readers of the Parquet files need no such care."""

    def __init__(self, directory: Path, row_of: RowOf = no_row) -> None:
        """TbaError if files are damaged or missing. The first merge creates the directory if there is none.

        `row_of` gives what is written beside each prompt for those who read the files."""
        self._directory = directory
        self._row_of = row_of
        self._files: list[LogFile] = []
        self._last_serials: Serials = {}
        self.num_repeated = 0
        """Groups that were not appended because they had been before."""
        warm_up()
        self._load()

    @property
    def position(self) -> int:
        """The number of the next merge."""
        return self._files[-1].stop if self._files else 0

    def append(self, groups: Sequence[Group], merged_at: Version | None = None) -> list[Group]:
        """Log one merge; the groups that were new. If none were, nothing is written and there was no merge.
        `merged_at`: the weights that are trained now, from which readers of the log see how old the data were.

        The serials of a source increase, so a group with one that is not above the last is one that came again. An
        OSError (a full disk) leaves the log as it was, and so does the ValueError for a group that no buffer takes.
        """
        check_groups(groups)
        new, serials = self._new_among(groups)
        if new:
            self._directory.mkdir(parents=True, exist_ok=True)
            file = LogFile(self.position, self.position + 1, is_joined=False)
            write(self._directory / file.name, [to_table(file.first, new, merged_at, self._row_of)], serials)
            self._files.append(file)
            self._last_serials = serials
        self.num_repeated += len(groups) - len(new)
        return new

    def compact(self) -> None:
        """Join the merges since the last call into one file, safe on disk when this returns."""
        pieces = [file for file in self._files if not file.is_joined]
        if not pieces:
            return
        joined = LogFile(pieces[0].first, pieces[-1].stop, is_joined=True)
        tables = (table for piece in pieces for table in read_tables(self._directory / piece.name))
        write(self._directory / joined.name, regroup(tables), self._last_serials, to_disk=True)
        self._files = [file for file in self._files if file.is_joined] + [joined]
        for piece in pieces:
            (self._directory / piece.name).unlink(missing_ok=True)

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[list[Group]]:
        """The groups of each merge from `start` up to `stop` (not included), equal to what was appended."""
        stop = self.position if stop is None else stop
        self._check_reaches(stop)
        for file in self._files:
            if file.first < stop and file.stop > start:
                path = self._directory / file.name
                for table in read_tables(path):
                    with naming(path):
                        merges = list(from_table(between(table, start, stop)))
                    yield from (groups for _, groups in merges)

    def set_aside_after(self, position: int) -> int:
        """Go back to `position`: what was merged there and later moves to `_superseded`; how many merges did.

        A crash in between leaves a log that ends at `position` or later, to be called with again.
        """
        self._check_reaches(position)
        num_merges = self.position - position
        if not num_merges:
            return 0
        aside = self._new_aside()
        try:
            # From the end, so that no gap ever shows.
            for file in reversed(self._files):
                if file.first >= position:
                    os.replace(self._directory / file.name, aside / file.name)
                elif file.stop > position:
                    self._split(file, position, aside)
        finally:
            self._load()
        return num_merges

    def _split(self, file: LogFile, position: int, aside: Path) -> None:
        path = self._directory / file.name
        before = LogFile(file.first, position, is_joined=True)
        after = LogFile(position, file.stop, is_joined=True)
        serials = dict(self._serials_before(file))
        for table in read_tables(path):
            kept = between(table, 0, position)
            rows: Any = zip(kept["source"].to_pylist(), kept["serial"].to_pylist(), strict=True)
            serials.update(rows)
        later = (between(table, position, file.stop) for table in read_tables(path))
        write(aside / after.name, regroup(later), read_serials(path))
        earlier = (between(table, 0, position) for table in read_tables(path))
        # It does not count as long as the file that it is a part of is there.
        write(self._directory / before.name, regroup(earlier), serials, to_disk=True)
        path.unlink()

    def _new_among(self, groups: Sequence[Group]) -> tuple[list[Group], Serials]:
        new, serials = [], dict(self._last_serials)
        for group in groups:
            if group.serial > serials.get(group.source, group.serial - 1):
                new.append(group)
                serials[group.source] = group.serial
        return new, serials

    def _load(self) -> None:
        for leftover in self._directory.glob(".*.tmp"):
            leftover.unlink()
        found = [file for path in self._directory.glob("*.parquet") if (file := LogFile.parse(path.name))]
        self._files, superseded = in_order(found, self._directory)
        for file in superseded:
            (self._directory / file.name).unlink()
        self._last_serials = read_serials(self._directory / self._files[-1].name) if self._files else {}

    def _serials_before(self, file: LogFile) -> Serials:
        index = self._files.index(file)
        return read_serials(self._directory / self._files[index - 1].name) if index else {}

    def _new_aside(self) -> Path:
        # Readers of a whole directory of Parquet files leave out names that begin with an underscore.
        folder = self._directory / "_superseded"
        folder.mkdir(exist_ok=True)
        number = 1 + max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=0)
        aside = folder / str(number)
        aside.mkdir()
        return aside

    def _check_reaches(self, position: int) -> None:
        if position > self.position:
            raise TbaError(
                f"{self._directory} ends before merge {self.position}, but {position} merges are asked for: "
                "restore its last files, or use an earlier checkpoint"
            )
