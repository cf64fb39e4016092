"""The rollout log's files: their names, and writing and reading one of them whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tba.buffer.schema import SCHEMA, VERSION, VERSION_KEY, schema_version, stored_names, upgraded
from tba.types import TbaError, first_line

Serials = dict[str, int]
"""The last serial of each source."""

_SERIALS_KEY = b"tba.last_serials"
_ROW_GROUP_BYTES = 32_000_000
_FAST: dict[str, Any] = {"compression": "lz4", "write_statistics": False}
_SMALL: dict[str, Any] = {"compression": "zstd", "write_statistics": True}


@dataclass(frozen=True)
class LogFile:
    """Merges from `first` up to `stop`, which is not included."""

    first: int
    stop: int
    is_joined: bool

    @property
    def name(self) -> str:
        return f"{self.first:09d}-{self.stop - 1:09d}.parquet" if self.is_joined else f"{self.first:09d}.parquet"

    @classmethod
    def parse(cls, name: str) -> LogFile | None:
        match = re.fullmatch(r"(\d{9,})(?:-(\d{9,}))?\.parquet", name)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        return cls(first, last + 1, match[2] is not None)


def in_order(found: Iterable[LogFile], directory: Path) -> tuple[list[LogFile], list[LogFile]]:
    """The files that make up the log, and those superseded by one of them. TbaError if merges are missing."""
    files: list[LogFile] = []
    superseded: list[LogFile] = []
    end = 0
    for file in sorted(found, key=lambda file: (file.first, -file.stop, not file.is_joined)):
        if file.stop <= end:
            superseded.append(file)
            continue
        if file.first != end:
            raise TbaError(f"{directory / file.name} should begin at merge {end}: restore the file that was before it")
        files.append(file)
        end = file.stop
    return files, superseded


def write(path: Path, tables: Iterable[pa.Table], serials: Serials, *, to_disk: bool = False) -> None:
    """Write one row group a table. The name appears when all is written, `to_disk` also in the event of a power cut.

    What goes to disk stays, and is small; what does not, a single merge, is soon joined to others and is written fast.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    schema = SCHEMA.with_metadata({VERSION_KEY: str(VERSION).encode(), _SERIALS_KEY: json.dumps(serials).encode()})
    try:
        with open(temporary, "wb") as file:
            # Dictionaries double the time and, under zstd, save nothing on text and numbers such as these.
            options = {"use_dictionary": False, "write_page_checksum": True, **(_SMALL if to_disk else _FAST)}
            with pq.ParquetWriter(file, schema, **options) as writer:
                for table in tables:
                    writer.write_table(table, row_group_size=max(1, table.num_rows))
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if to_disk:
        _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def regroup(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join tables of whole merges into larger ones, which compress and read better as row groups."""
    waiting: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        waiting.append(table)
        num_bytes += table.nbytes
        if num_bytes > _ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting, num_bytes = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def between(table: pa.Table, start: int, stop: int) -> pa.Table:
    """The rows of merges from `start` up to `stop` (not included); merges are in order."""
    first, last = np.searchsorted(table["merge"].to_numpy(), [start, stop])
    return table.slice(int(first), int(last - first))


def read_tables(path: Path) -> Iterator[pa.Table]:
    """Row group by row group: the whole merges that `write` was given together, whichever version of tba wrote them."""
    with naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        version = schema_version(file.schema_arrow, str(path))
        for index in range(file.num_row_groups):
            yield upgraded(file.read_row_group(index), version)


def read_rows(path: Path, row_group: int, names: Sequence[str]) -> pa.Table:
    """Some columns of one row group. Others are not read from the disk."""
    with naming(path), pq.ParquetFile(path, page_checksum_verification=True) as file:
        version = schema_version(file.schema_arrow, str(path))
        table = file.read_row_group(row_group, columns=stored_names(version, names))
        return upgraded(table, version, names).select(list(names))


def row_counts(path: Path) -> list[int]:
    """Rows of each row group."""
    with naming(path), pq.ParquetFile(path) as file:
        return [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]


def read_serials(path: Path) -> Serials:
    with naming(path):
        schema = pq.read_schema(path)
        schema_version(schema, str(path))
        serials: Serials = json.loads((schema.metadata or {})[_SERIALS_KEY])
        return serials


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes pyarrow raise into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise TbaError(
            f"{path} cannot be read ({first_line(error)}): restore it, or delete it and every later file of the log"
        ) from error
