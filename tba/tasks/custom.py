"""The user's own prompts: rows of a file or dataset become problems. What is right is for their reward to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tba.config_tasks import CustomTaskConfig
from tba.tasks.base import Content, Encode, Problem, Task
from tba.tasks.rows import Row, read_rows, row_ids, source_name
from tba.types import Prompt, TbaError


def load(config: CustomTaskConfig, encode: Encode) -> Task:
    """Read and check every row. Held out: all of `eval_data`, or else the last `num_eval` training rows."""
    rows = read_rows(config.data, config.split)
    name = source_name(config.data)
    problems = _problems(rows, row_ids(rows, name), config.data, config, encode)
    if config.eval_data is not None:
        rows = read_rows(config.eval_data, config.eval_split)
        taken = {problem.prompt.id for problem in problems}
        ids = row_ids(rows, f"{source_name(config.eval_data)}-eval", taken)
        return Task(name, problems, _problems(rows, ids, config.eval_data, config, encode), None)
    num_train = len(problems) - config.num_eval
    if num_train < 1:
        raise TbaError(
            f"task.num_eval = {config.num_eval} leaves none of the {len(problems)} rows of {config.data} to train on: "
            "lower task.num_eval, or give task.eval_data"
        )
    return Task(name, problems[:num_train], problems[num_train:], None)


def _problems(
    rows: Sequence[Row], ids: Sequence[str], source: str, config: CustomTaskConfig, encode: Encode
) -> list[Problem]:
    return [
        _problem(row, id, f"{source}, row {number}", config, encode)
        for number, (row, id) in enumerate(zip(rows, ids, strict=True), 1)
    ]


def _problem(row: Row, id: str, place: str, config: CustomTaskConfig, encode: Encode) -> Problem:
    if config.prompt_column not in row:
        raise TbaError(
            f"{place} has no column {config.prompt_column!r}: set task.prompt_column to one of {', '.join(row)}"
        )
    content = _content(row[config.prompt_column], f"{place}, column {config.prompt_column!r}")
    if config.system_prompt is not None:
        content = _with_system_prompt(content, config.system_prompt)
    text, tokens = encode(content)
    columns = {column: value for column, value in row.items() if column != config.prompt_column}
    return Problem(Prompt(id, text, tokens), content, columns, _demonstration(row.get("completion")))


def _content(value: Any, place: str) -> Content:
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, list) and value:
        messages = [_message(message, f"{place}, message {number}") for number, message in enumerate(value, 1)]
        if messages[-1]["role"] == "assistant":
            raise TbaError(
                f"{place} ends in a turn of the assistant, so the prompt would hold its own answer: leave that turn "
                "out, or put it into a column of its own"
            )
        return messages
    what = "empty" if not value or isinstance(value, str) else f"of type {type(value).__name__}"
    raise TbaError(f"{place} is {what}: a prompt is text, or a list of messages with role and content")


def _demonstration(completion: Any) -> str | None:
    """The column `completion`, if it is text or a list of one message (TRL's format)."""
    if isinstance(completion, list) and len(completion) == 1 and isinstance(completion[0], dict):
        completion = completion[0].get("content")
    return completion if isinstance(completion, str) else None


def _message(value: Any, place: str) -> dict[str, str]:
    # Parquet gives every message the keys of all, with None where a message has none.
    message = {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else {}
    if not {"role", "content"} <= message.keys() or not all(isinstance(part, str) for part in message.values()):
        raise TbaError(f"{place} is not a chat message: it needs role and content, both text")
    return message


def _with_system_prompt(content: Content, system_prompt: str) -> Content:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return [{"role": "system", "content": system_prompt}, *messages]
