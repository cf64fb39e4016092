"""MATH: competition problems with a level and a subject, whose solution gives the answer in `\\boxed{}`."""

from __future__ import annotations

from tba.config_tasks import MathTaskConfig
from tba.rewards.answer import extract
from tba.tasks import maths
from tba.tasks.base import Encode, Task
from tba.tasks.rows import Row


def load(config: MathTaskConfig, encode: Encode) -> Task:
    return maths.load(config, encode, DIALECT)


def read(row: Row) -> maths.Exercise:
    """The `answer` column where there is one (MATH-500 has it), else what the solution has in its last box."""
    question = maths.required_text(row, "problem")
    solution = str(row.get("solution") or "").strip()
    given = row.get("answer")
    answer = str(given).strip() if given is not None else ""
    answer = answer or extract(solution) or ""
    if not answer:
        raise maths.UnusableRowError("no answer in column 'answer' or in a \\boxed{} of column 'solution'")
    columns = {"level": _level(row.get("level")), "subject": row.get("subject") or row.get("type")}
    kept = {name: value for name, value in columns.items() if value is not None}
    return maths.Exercise(question, solution or f"\\boxed{{{answer}}}", answer, kept)


def _level(value: object) -> str | None:
    """`Level 3`, as the original has it, and 3, as MATH-500 does, are the same level."""
    return None if value is None else str(value).removeprefix("Level ").strip()


DIALECT = maths.Dialect(
    read, "Think step by step, and put the final answer in \\boxed{}.", breakdown=("level", "subject")
)
