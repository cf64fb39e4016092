"""The rows of the training prompts, as readers of the rollout log see them: a file in which the Trainer looks them up.

The Searcher that prepares the task writes the file, once a launch. So groups that go up need not carry the columns of
their prompts, and a column of any size costs nothing on the way. Values are cut to a bounded size
(`samples/bounded.py`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tba.samples.bounded import bounded_json, messages_json
from tba.tasks.base import Problem
from tba.types import PromptRow

ROWS = "rows.arrow"
_ROWS_AT_ONCE = 4096


def write_rows(path: Path, problems: Sequence[Problem]) -> None:
    """The file appears whole."""
    import pyarrow as pa

    schema = pa.schema({name: pa.string() for name in ("id", "columns", "messages")})
    partial = path.with_name(f".{path.name}.partial")
    with pa.OSFile(str(partial), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for start in range(0, len(problems), _ROWS_AT_ONCE):
            part = problems[start : start + _ROWS_AT_ONCE]
            columns: list[Any] = [
                pa.array([p.prompt.id for p in part], pa.string()),
                pa.array([bounded_json(p.columns) for p in part], pa.string()),
                pa.array([messages_json(p.content) for p in part], pa.string()),
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    os.replace(partial, path)


class StoredRows:
    """Looks up rows by the id of their prompt. The file need not be there yet: it is before the first group is made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table: Any = None
        self._places: dict[str, int] = {}

    def __call__(self, prompt_id: str) -> PromptRow | None:
        if self._table is None and not self._open():
            return None
        place = self._places.get(prompt_id)
        if place is None:
            return None
        return PromptRow(self._table["columns"][place].as_py(), self._table["messages"][place].as_py())

    def _open(self) -> bool:
        import pyarrow as pa

        if not self._path.exists():
            return False
        self._table = pa.ipc.open_file(pa.memory_map(str(self._path))).read_all()
        self._places = {prompt_id: place for place, prompt_id in enumerate(self._table["id"].to_pylist())}
        return True
