"""The user's own prompts: rows of a file or dataset become problems. What is right is for their reward to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from tba.tasks.base import Beside, Content, Encode, Headline, Problem, Task, TaskSettings
from tba.tasks.columns import ANSWERS, CONVERSATION, MISSING, PROMPTS, Columns, find_columns, value_at
from tba.tasks.read_data import Row, hold_out_last, read_rows, row_ids, source_name
from tba.types import Prompt, TbaError

if TYPE_CHECKING:
    from tba.config.settings import Config

_MOST_HELD_OUT = 64


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
    num_eval: int | None = Field(None, ge=0)
    """Number of training rows that are held out if there is no `task.eval_data`. If empty, a tenth of the rows are, at
    least 1 and at most 64. With 0, nothing is evaluated."""
    prompt_column: str = ""
    """The column that has the prompt: a string, or a list of chat messages with `role` and `content`. If empty, it is
    the first of `prompt`, `question` and `messages` that the data have. If a conversation in `messages` ends with a
    turn of the assistant, that turn is not part of the prompt: it is the demonstration, and the `answer` unless the
    data have another."""
    columns: dict[str, str] = Field({})
    """Columns under other names than reward functions ask for: the name that they ask for, then the column that the
    data have, such as `{answer = "final"}` or `--task.columns.answer final`. A dot leads into a column that holds an
    object. Without it, `answer` is the first of the columns `answer`, `solution`, `ground_truth`,
    `reward_model.ground_truth` and `label`."""
    system_prompt: str | None = None
    """A system message that comes before every prompt. Prompts that are plain text become chat messages then."""

    headline: ClassVar[Headline] = Headline("reward", beside=(Beside("accuracy", "accuracy"),))

    def load(self, encode: Encode) -> Task:
        """Read and check every row. Held out: all of `eval_data`, or else the last `num_eval` training rows."""
        rows = read_rows(self.data, self.split)
        name = source_name(self.data)
        problems, notes = _problems(rows, row_ids(rows, name), self.data, self, encode)
        if self.eval_data is None:
            num_eval = _some_of(len(rows)) if self.num_eval is None else self.num_eval
            return Task(name, *hold_out_last(problems, num_eval, f"rows of {self.data}"), None, notes=notes)
        rows = read_rows(self.eval_data, self.eval_split)
        taken = {problem.prompt.id for problem in problems}
        ids = row_ids(rows, f"{source_name(self.eval_data)}-eval", taken)
        held_out, more_notes = _problems(rows, ids, self.eval_data, self, encode)
        return Task(name, problems, held_out, None, notes=(*notes, *more_notes))

    @model_validator(mode="after")
    def _check_columns(self) -> Settings:
        if PROMPTS[0] in self.columns:
            raise ValueError("task.columns is for what reward functions ask for: name prompts with task.prompt_column")
        return self

    def check(self, config: Config) -> None:
        if not config.reward.is_named:
            raise ValueError("reward is missing: name yours with --reward module:function")


def _some_of(num_rows: int) -> int:
    """Rows to hold out if nobody says how many."""
    return min(_MOST_HELD_OUT, max(1, num_rows // 10))


def _problems(
    rows: Sequence[Row], ids: Sequence[str], source: str, config: Settings, encode: Encode
) -> tuple[list[Problem], tuple[str, ...]]:
    """With what there is to tell of the columns."""
    columns = find_columns(rows, source, config.prompt_column, config.columns)
    problems = [
        _problem(row, id, f"{source}, row {number}", columns, config.system_prompt, encode)
        for number, (row, id) in enumerate(zip(rows, ids, strict=True), 1)
    ]
    return problems, (columns.note,) if columns.note else ()


def _problem(row: Row, id: str, place: str, columns: Columns, system_prompt: str | None, encode: Encode) -> Problem:
    value = value_at(row, columns.prompt)
    if value is MISSING:
        raise TbaError(f"{place} has no column {columns.prompt!r}: set task.prompt_column to one of {', '.join(row)}")
    answer = None
    if columns.prompt == CONVERSATION:
        value, answer = _without_last_answer(value)
    content = _content(value, f"{place}, column {columns.prompt!r}")
    if system_prompt is not None:
        content = _with_system_prompt(content, system_prompt)
    text, tokens = encode(content)
    own = {column: value for column, value in row.items() if column != columns.prompt}
    found = {**({} if answer is None else {ANSWERS[0]: answer}), **own, **columns.extra(row, place)}
    demonstration = _demonstration(row.get("completion"))
    return Problem(Prompt(id, text, tokens), content, found, answer if demonstration is None else demonstration)


def _without_last_answer(messages: Any) -> tuple[Any, str | None]:
    """A conversation up to the last turn of the assistant, and the text of this turn if it ends with one."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    answer = last.get("content") if isinstance(last, dict) and last.get("role") == "assistant" else None
    return (messages[:-1], answer) if isinstance(answer, str) else (messages, None)


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
