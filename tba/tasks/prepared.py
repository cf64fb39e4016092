"""A task prepared once for all processes of a run: read, encoded, and put into one file that the others map.

The first process that asks prepares it, while the others wait; what they then read are the same problems, a row at a
time, as they are asked for. Columns are kept as JSON. Data that JSON would change (tuples, dates) are not shared: then
each process prepares the task for itself.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from tba.rewards.functions import RewardFactory, RewardSpec
from tba.tasks.base import Problem, Task
from tba.tasks.row_texts import ROWS, write_rows
from tba.types import Prompt

if TYPE_CHECKING:  # the launcher, which reads no problem, does without it
    import pyarrow as pa

PROMPTS, LOCK = "prompts.arrow", ".prompts.lock"
_ABOUT = b"tba.task"
_ROWS_AT_ONCE = 4096


@contextmanager
def prepared_anew(run: Path) -> Iterator[None]:
    """One launch of a run. Data may have changed since the last one, so what that prepared is removed."""
    _remove(run)
    try:
        yield
    finally:
        _remove(run)


def prepared(run: Path, prepare: Callable[[], Task]) -> Task:
    """The task as `prepare` makes it, which is called by the first process of the run only."""
    path = run / PROMPTS
    with open(run / LOCK, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets it go with its holder, however that ends
        if path.exists():
            return read(path)
        task = prepare()
        write_rows(run / ROWS, task.train)
        _write_if_exact(path, task)
        return task


def read(path: Path) -> Task:
    """What was written. Its problems stay in the file until they are asked for."""
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    about = json.loads((table.schema.metadata or {})[_ABOUT])
    problems = StoredProblems(table)
    num_train = about.pop("num_train")
    return Task(
        name=about["name"],
        train=problems.between(0, num_train),
        held_out=problems.between(num_train, len(problems)),
        default_reward=_reward(about["default_reward"]),
        skipped=about["skipped"],
        observers=tuple(_reward(value) for value in about["observers"]),
        breakdown=tuple(about["breakdown"]),
        notes=tuple(about["notes"]),
    )


class StoredProblems(Sequence[Problem]):
    """Rows of a table as problems, each made when it is asked for."""

    def __init__(self, table: pa.Table, rows: range | None = None) -> None:
        self._table = table
        self._rows = range(table.num_rows) if rows is None else rows

    def between(self, start: int, stop: int) -> StoredProblems:
        return StoredProblems(self._table, self._rows[start:stop])

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> StoredProblems: ...
    def __getitem__(self, index: int | slice) -> Problem | StoredProblems:
        if isinstance(index, slice):
            return StoredProblems(self._table, self._rows[index])
        [row] = self._table.slice(self._rows[index], 1).to_pylist()
        return Problem(
            Prompt(row["id"], row["text"], tuple(row["tokens"])),
            json.loads(row["content"]),
            json.loads(row["columns"]),
            row["demonstration"],
        )


def _write_if_exact(path: Path, task: Task) -> None:
    import pyarrow as pa

    try:
        about = {
            "name": task.name,
            "num_train": len(task.train),
            "default_reward": _plain_reward(task.default_reward),
            "skipped": dict(task.skipped),
            "observers": [_plain_reward(observer) for observer in task.observers],
            "breakdown": list(task.breakdown),
            "notes": list(task.notes),
        }
        schema = _schema().with_metadata({_ABOUT: _exact(about).encode()})
        partial = path.with_name(f".{path.name}.partial")
        with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            problems = [*task.train, *task.held_out]
            for start in range(0, len(problems), _ROWS_AT_ONCE):
                writer.write_batch(_batch(problems[start : start + _ROWS_AT_ONCE], schema))
    except (TypeError, ValueError, pa.ArrowException):  # nothing that this format can hold exactly
        return
    os.replace(partial, path)


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts = {name: pa.string() for name in ("id", "text", "content", "columns", "demonstration")}
    return pa.schema({**texts, "tokens": pa.list_(pa.int32())})


def _batch(problems: Sequence[Problem], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns: dict[str, list[Any]] = {
        "id": [p.prompt.id for p in problems],
        "text": [p.prompt.text for p in problems],
        "content": [_exact(p.content) for p in problems],
        "columns": [_exact(dict(p.columns)) for p in problems],
        "demonstration": [p.demonstration for p in problems],
        "tokens": [p.prompt.tokens for p in problems],
    }
    arrays: list[Any] = [pa.array(columns[field.name], field.type) for field in schema]
    return pa.record_batch(arrays, schema=schema)


def _exact(value: Any) -> str:
    """As JSON, if that gives the very same value back; else ValueError."""
    text = json.dumps(value)
    if not _same(json.loads(text), value):
        raise ValueError("JSON would change it")
    return text


def _same(left: Any, right: Any) -> bool:
    """Equal, and of the same types throughout: 1, 1.0 and True are equal in Python."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _plain_reward(spec: RewardSpec | None) -> Any:
    return {"path": spec.path, "settings": dict(spec.settings)} if isinstance(spec, RewardFactory) else spec


def _reward(value: Any) -> Any:
    return RewardFactory(value["path"], value["settings"]) if isinstance(value, Mapping) else value


def _remove(run: Path) -> None:
    for name in (PROMPTS, ROWS, LOCK):
        (run / name).unlink(missing_ok=True)
