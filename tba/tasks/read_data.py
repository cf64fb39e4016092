"""Reads rows: a jsonl, json, csv or parquet file, a saved dataset, or a dataset of the Hugging Face Hub.

What the rows mean is the task's business. Every fault is a TbaError of one line that names the file and the place.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tba.config.hub import hub_if_reachable
from tba.config.paths import missing_path, nearest
from tba.types import TbaError, first_line

Row = dict[str, Any]
T = TypeVar("T")


def read_rows(source: str, split: str) -> list[Row]:
    """All rows of `source`: a file by its suffix, a folder, or a dataset id (`id:subset` for one with subsets).

    `split` matters only to datasets. Values of a csv file are strings; a row keeps just the columns it has.
    """
    path = Path(source).expanduser()
    reader = _READERS.get(path.suffix.lower())
    if path.is_file() and reader is None:
        raise TbaError(f"{source}: unknown suffix {path.suffix!r}: use one of {', '.join(_READERS)}")
    if reader is not None and not path.is_dir():
        rows = _read_file(path, reader)
    elif path.is_dir():
        rows = _read_folder(path, split)
    elif (missing := missing_path(source.partition(":")[0])) is not None:
        raise TbaError(f"task.data {source!r} {missing}")
    else:
        rows = _load_dataset(source, split)
    if not rows:
        raise TbaError(f"{source} has no rows: the data needs at least one")
    return rows


def source_name(source: str) -> str:
    """A short name: the file's stem, or a dataset id without owner and subset."""
    path = Path(source)
    name = path.stem if path.suffix.lower() in _READERS else path.name
    return name.partition(":")[0] or "data"


def row_ids(rows: Sequence[Row], stem: str, taken: Collection[str] = ()) -> list[str]:
    """The `id` column where it holds distinct strings, none of them taken; else the stem and the row's index."""
    ids = [row.get("id") for row in rows]
    given = [id for id in ids if isinstance(id, str)]
    if len(given) == len(rows) and len({*given, *taken}) == len(given) + len(taken):
        return given
    return [f"{stem}-{index}" for index in range(len(rows))]


def hold_out_last(items: Sequence[T], num_eval: int, what: str) -> tuple[Sequence[T], Sequence[T]]:
    """All but the last `num_eval` to train on, and these held out. `what` they are, for the error if none is left."""
    num_train = len(items) - num_eval
    if num_train < 1:
        raise TbaError(
            f"task.num_eval = {num_eval} leaves none of the {len(items)} {what} to train on: lower task.num_eval, or "
            "give task.eval_data"
        )
    return items[:num_train], items[num_train:]


def _read_file(path: Path, reader: Callable[[Path], list[Row]]) -> list[Row]:
    try:
        return reader(path)
    except FileNotFoundError:
        raise TbaError(f"no data file at {path}: {nearest(str(path))}") from None
    except UnicodeDecodeError as error:
        raise TbaError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): convert it") from None
    except OSError as error:
        raise TbaError(f"cannot read {path}: {error.strerror or error}") from None


def _read_json(path: Path) -> list[Row]:
    """One array of objects, or one object a line: both are in use under both suffixes."""
    text = path.read_text("utf-8-sig")
    if not text.lstrip().startswith("["):
        return [_as_row(value, f"{path}, line {number}") for number, value in _json_lines(path, text)]
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise TbaError(f"{path}, line {error.lineno}: not valid JSON: {error.msg}") from None
    return [_as_row(value, f"{path}, row {number}") for number, value in enumerate(values, 1)]


def _json_lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    # Not splitlines(), which also breaks at characters that JSON strings may hold, such as U+2028.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            raise TbaError(f"{path}, line {number}: not valid JSON: {error.msg} (column {error.colno})") from None


def _as_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise TbaError(f"{place}: a row cannot be of type {type(value).__name__}: write an object with named columns")
    return value


def _read_csv(path: Path) -> list[Row]:
    rows: list[Row] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            for row in reader:
                if None in row or None in row.values():
                    count = len(reader.fieldnames or ())
                    raise TbaError(f"{path}, line {reader.line_num}: not {count} fields as in the header: quote commas")
                rows.append(dict(row))
        except csv.Error as error:
            raise TbaError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None
    return rows


def _read_parquet(path: Path) -> list[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path).read().to_pylist()
    except pa.ArrowException as error:
        raise TbaError(f"{path} is not a readable parquet file: {first_line(error)}") from None


_READERS: dict[str, Callable[[Path], list[Row]]] = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _read_folder(path: Path, split: str) -> list[Row]:
    if not any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return _load_dataset(str(path), split)
    import datasets

    try:
        saved = datasets.load_from_disk(str(path))
    except Exception as error:  # datasets raises whatever its readers raise
        raise TbaError(f"cannot read the saved dataset {path}: {first_line(error)}") from error
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            raise TbaError(f"{path} has no split {split!r}: it has {', '.join(saved)}")
        saved = saved[split]
    return list(saved)


def _load_dataset(source: str, split: str) -> list[Row]:
    name, _, subset = source.partition(":")
    with hub_if_reachable() as unreachable:
        # Imported here because it takes seconds, which a plain file need not pay.
        import datasets

        try:
            return list(datasets.load_dataset(name, subset or None, split=split))
        except Exception as error:  # datasets, huggingface_hub and httpx raise types with no base in common
            if unreachable is not None and not Path(name).expanduser().is_dir():
                raise TbaError(
                    f"dataset {source!r} is not here, and the hub cannot be reached ({unreachable}): {nearest(name)}"
                ) from error
            raise TbaError(
                f"cannot load dataset {source!r}, split {split!r}: {first_line(error)}: check the id (id:subset for "
                "one with subsets), the split and the network, or name a local file"
            ) from error
