"""The Trainer knows the rows of prompts by the file that whoever prepares the task writes."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from tba.tasks.base import Content, Problem, Task
from tba.tasks.prepared import PROMPTS, prepared, prepared_anew
from tba.tasks.row_texts import ROWS, StoredRows, write_rows
from tba.types import Prompt, PromptRow


def problem(name: str, columns: dict[str, Any], content: Content = "2+2=") -> Problem:
    return Problem(Prompt(name, "2+2=", (1, 2)), content, columns)


def task_of(*problems: Problem) -> Task:
    return Task("task", problems, [], "module:function")


def test_rows_are_found_by_the_id_of_their_prompt(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "2+2?"}]
    rows = StoredRows(tmp_path / ROWS)
    assert rows("a") is None, "before the task is prepared"
    write_rows(tmp_path / ROWS, [problem("a", {"answer": 4}), problem("b", {}, chat)] * 3000)
    assert rows("a") == PromptRow('{"answer": 4}', None)
    assert rows("b") == PromptRow("{}", json.dumps(chat))
    assert rows("c") is None


def test_they_are_there_when_the_task_is_prepared_and_gone_after_the_launch(tmp_path: Path) -> None:
    with prepared_anew(tmp_path):
        prepared(tmp_path, lambda: task_of(problem("a", {"answer": 4})))
        assert StoredRows(tmp_path / ROWS)("a") == PromptRow('{"answer": 4}', None)
    assert not (tmp_path / ROWS).exists()


def test_data_that_are_not_shared_have_rows_too(tmp_path: Path) -> None:
    """JSON would change a date, so each process prepares such a task for itself. To look at, it is good enough."""
    prepared(tmp_path, lambda: task_of(problem("a", {"day": datetime.date(2026, 1, 2)})))
    assert not (tmp_path / PROMPTS).exists()
    assert StoredRows(tmp_path / ROWS)("a") == PromptRow('{"day": "2026-01-02"}', None)
