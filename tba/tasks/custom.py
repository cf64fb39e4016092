"""The user's own prompts: rows of a file or dataset become problems. What is right is for their reward to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from tba.tasks.base import Beside, Content, Encode, Headline, Problem, Task, TaskSettings
from tba.tasks.read_data import Row, hold_out_last, read_rows, row_ids, source_name
from tba.types import Prompt, TbaError

if TYPE_CHECKING:
    from tba.config.settings import Config


class Settings(TaskSettings):
    """Your own prompts: a jsonl, json, csv or parquet file, or a Hugging Face dataset id."""

    kind: Literal["custom"] = "custom"
    """The kind of task. It need not be given: settings with `task.data` and without a kind are of this one."""
    data: str
    """The file or dataset id with the training rows."""
    eval_data: str | None = None
    """The file or dataset id with held-out rows. If empty, the last `task.num_eval` training rows are held out."""
    split: str = "train"
    """The split that is read if `task.data` is a Hugging Face dataset."""
    eval_split: str = "test"
    """The split that is read if `task.eval_data` is a Hugging Face dataset."""
    num_eval: int = Field(64, ge=0)
    """Number of training rows that are held out if there is no `task.eval_data`. With 0, nothing is evaluated."""
    prompt_column: str = "prompt"
    """The column that has the prompt: a string, or a list of chat messages with `role` and `content`."""
    system_prompt: str | None = None
    """A system message that comes before every prompt. Prompts that are plain text become chat messages then."""

    headline: ClassVar[Headline] = Headline(
        "reward", beside=(Beside("accuracy", "accuracy"),), eval_flags="--evaluation.num-samples 16"
    )

    def load(self, encode: Encode) -> Task:
        """Read and check every row. Held out: all of `eval_data`, or else the last `num_eval` training rows."""
        rows = read_rows(self.data, self.split)
        name = source_name(self.data)
        problems = _problems(rows, row_ids(rows, name), self.data, self, encode)
        if self.eval_data is None:
            return Task(name, *hold_out_last(problems, self.num_eval, f"rows of {self.data}"), None)
        rows = read_rows(self.eval_data, self.eval_split)
        taken = {problem.prompt.id for problem in problems}
        ids = row_ids(rows, f"{source_name(self.eval_data)}-eval", taken)
        return Task(name, problems, _problems(rows, ids, self.eval_data, self, encode), None)

    def check(self, config: Config) -> None:
        if not config.reward.is_named:
            raise ValueError("reward is missing: name yours with --reward module:function")


def _problems(rows: Sequence[Row], ids: Sequence[str], source: str, config: Settings, encode: Encode) -> list[Problem]:
    return [
        _problem(row, id, f"{source}, row {number}", config, encode)
        for number, (row, id) in enumerate(zip(rows, ids, strict=True), 1)
    ]


def _problem(row: Row, id: str, place: str, config: Settings, encode: Encode) -> Problem:
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
