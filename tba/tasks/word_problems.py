"""Written mathematical problems with an answer that can be graded: GSM8K and MATH.

Each of the two is a `Dialect`: how to read one of its rows, and which mark it asks for. Prompts, shots and held-out
rows are made the same way for both. Rows that cannot be graded are left out and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from tba.rewards.answer import extract, is_number
from tba.tasks.base import Content, Encode, Problem, Task, TaskSettings
from tba.tasks.read_data import Row, hold_out_last, read_rows
from tba.types import Prompt, TbaError

_CALCULATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True)
class Exercise:
    """A row that was understood."""

    question: str
    solution: str
    """Worked out, in the form a response should have; shots are made of it."""
    answer: str
    columns: Mapping[str, Any] = field(default_factory=dict)


Exercises = dict[int, Exercise]
"""By the number of the row, which stays the same whatever is left out."""


class UnusableRowError(Exception):
    """A row that cannot be used; the message says why, for all rows with the same fault."""


@dataclass(frozen=True)
class Dialect:
    """What sets one set of problems apart from another."""

    read: Callable[[Row], Exercise]
    """Raises UnusableRowError for a row without a question, or without an answer that can be graded."""
    instruction: str
    """How a chat prompt asks for the final answer."""
    breakdown: tuple[str, ...] = ()


class WordProblemsSettings(TaskSettings):
    """What the tasks with written mathematical problems have in common."""

    data: str | None = None
    """The file (jsonl, json, csv, parquet) or dataset id (`id:subset`) with the training rows. It may be left out only
    to evaluate without shots."""
    eval_data: str | None = None
    """The file or dataset id with held-out rows. If empty, the last `task.num_eval` training rows are held out."""
    split: str = "train"
    """The split that is read if `task.data` is a Hugging Face dataset."""
    eval_split: str = "test"
    """The split that is read if `task.eval_data` is a Hugging Face dataset."""
    num_eval: int = Field(256, ge=0)
    """Number of training rows that are held out if there is no `task.eval_data`."""
    prompt_style: Literal["chat", "plain"] = "chat"
    """How a problem is put to the model. `chat` uses the model's chat template. `plain` is a text made with
    `task.template`, as in the paper."""
    template: str = "[MATH TASK] Problem:\n{question}\n\nSolution:\n"
    """The prompt if `task.prompt_style` is `plain`, with `{question}` where the problem goes."""
    instruction: str | None = None
    """Text that follows the problem and says how to give the final answer. If it is not set, chat prompts have the
    task's own, and plain prompts, which are for models tuned on their format, have none. An empty text means none."""
    system_prompt: str | None = None
    """A system message that comes before every chat prompt."""
    num_shots: int = Field(0, ge=0)
    """Number of solved examples that come before every problem. They are the first training rows, which are then not
    trained on."""
    max_solution_lines: int | None = Field(None, ge=1)
    """Train only on problems whose solution has at most this many lines, the line of the answer included. They are
    easier, for models that would hardly ever solve the others. The held-out problems stay as they are."""
    num_problems: int | None = Field(None, ge=1)
    """Train on this many problems only, the first ones, so that each comes back sooner. If empty, train on all."""
    last_number: bool = False
    """Whether to grade a response that marks no final answer by its last number. The metric `rewards/by_last_number`
    says how many were graded so."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError("task.template has no {question} in it: put it where the problem goes")
        return value

    dialect: ClassVar[Dialect]

    def load(self, encode: Encode) -> Task:
        """Held out: all of `eval_data`, or else the last `num_eval` usable rows. Shots: the first, never held out."""
        skipped: Counter[str] = Counter()
        train = _read(self.data, self.split, self.dialect, skipped) if self.data is not None else {}
        if self.eval_data is not None:
            held_out = _read(self.eval_data, self.eval_split, self.dialect, skipped)
        elif self.data is not None:
            parts = hold_out_last(list(train.items()), self.num_eval, f"usable rows of {self.data}")
            train, held_out = map(dict, parts)
        else:
            raise TbaError("task.data is missing: name the training rows (or task.eval_data, to evaluate only)")
        train = _without(train, held_out, skipped)
        if self.max_solution_lines is not None and train:
            train = _short(train, self.max_solution_lines, skipped)
        if self.num_shots > len(train):
            raise TbaError(
                f"task.num_shots = {self.num_shots} is more than the {len(train)} training rows: "
                "take fewer shots, or give more rows in task.data"
            )
        shots = list(islice(train.values(), self.num_shots))
        end = None if self.num_problems is None else self.num_shots + self.num_problems
        train = dict(islice(train.items(), self.num_shots, end))  # the model would only copy what it is shown

        def problems(exercises: Exercises, stem: str) -> list[Problem]:
            return [_problem(f"{stem}-{row}", e, shots, self, encode) for row, e in exercises.items()]

        graded_by = "final_answer_or_last_number" if self.last_number else "final_answer"
        return Task(
            name=self.kind,
            train=problems(train, self.kind),
            held_out=problems(held_out, f"{self.kind}-eval"),
            default_reward=f"tba.rewards.answer:{graded_by}",
            skipped=dict(skipped),
            observers=("tba.rewards.answer:by_last_number",) if self.last_number else (),
            breakdown=self.dialect.breakdown,
        )


def _required_text(row: Row, column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise UnusableRowError(f"no text in column {column!r}")
    return value.strip()


def _read(source: str, split: str, dialect: Dialect, skipped: Counter[str]) -> Exercises:
    exercises: Exercises = {}
    faults: Counter[str] = Counter()
    rows = read_rows(source, split)
    for number, row in enumerate(rows):
        try:
            exercises[number] = dialect.read(row)
        except UnusableRowError as error:
            faults[str(error)] += 1
    if not exercises:
        fault, count = faults.most_common(1)[0]
        raise TbaError(
            f"{source} has no row that can be graded: {fault} in {count} of {len(rows)} rows "
            f"(columns: {', '.join(rows[0])})"
        )
    skipped.update(faults)
    return exercises


def _without(train: Exercises, held_out: Exercises, skipped: Counter[str]) -> Exercises:
    """Training rows without the questions that are held out: data sets overlap more often than their names say."""
    questions = {exercise.question for exercise in held_out.values()}
    kept = {row: exercise for row, exercise in train.items() if exercise.question not in questions}
    if len(kept) < len(train):
        skipped["held out as well"] += len(train) - len(kept)
    return kept


def _short(train: Exercises, max_lines: int, skipped: Counter[str]) -> Exercises:
    kept = {row: e for row, e in train.items() if len(e.solution.splitlines()) <= max_lines}
    if not kept:
        raise TbaError(f"task.max_solution_lines = {max_lines} leaves none of {len(train)} problems: raise it")
    skipped["solution too long"] += len(train) - len(kept)
    return kept


def _problem(
    id: str, exercise: Exercise, shots: Sequence[Exercise], settings: WordProblemsSettings, encode: Encode
) -> Problem:
    content = (_chat if settings.prompt_style == "chat" else _plain)(exercise, shots, settings)
    text, tokens = encode(content)
    columns = {**exercise.columns, "answer": exercise.answer, "solution": exercise.solution}
    return Problem(Prompt(id, text, tokens), content, columns, demonstration=exercise.solution)


def _chat(exercise: Exercise, shots: Sequence[Exercise], settings: WordProblemsSettings) -> Content:
    instruction = settings.dialect.instruction if settings.instruction is None else settings.instruction
    messages = [] if settings.system_prompt is None else [{"role": "system", "content": settings.system_prompt}]
    for shot in shots:
        messages.append({"role": "user", "content": _asked(shot, instruction)})
        messages.append({"role": "assistant", "content": shot.solution})
    return [*messages, {"role": "user", "content": _asked(exercise, instruction)}]


def _plain(exercise: Exercise, shots: Sequence[Exercise], settings: WordProblemsSettings) -> Content:
    def posed(asked: Exercise) -> str:
        # Not str.format: problems and templates hold braces of their own.
        return settings.template.replace("{question}", _asked(asked, settings.instruction or ""))

    return "".join(f"{posed(shot)}{shot.solution}\n\n" for shot in shots) + posed(exercise)


def _asked(exercise: Exercise, instruction: str) -> str:
    return f"{exercise.question}\n\n{instruction}" if instruction else exercise.question


def _read_gsm8k(row: Row) -> Exercise:
    question, worked = _required_text(row, "question"), _required_text(row, "answer")
    # Calculator annotations are for a tool that no model here has.
    solution = _CALCULATION.sub("", worked)
    answer = extract(solution) if "####" in solution else solution
    if answer is None or not is_number(answer):
        raise UnusableRowError("no number after '####' in column 'answer'")
    return Exercise(question, solution, answer)


def _read_math(row: Row) -> Exercise:
    """The `answer` column where there is one (MATH-500 has it), else what the solution has in its last box."""
    question = _required_text(row, "problem")
    solution = str(row.get("solution") or "").strip()
    given = row.get("answer")
    answer = str(given).strip() if given is not None else ""
    answer = answer or extract(solution) or ""
    if not answer:
        raise UnusableRowError("no answer in column 'answer' or in a \\boxed{} of column 'solution'")
    columns = {"level": _level(row.get("level")), "subject": row.get("subject") or row.get("type")}
    kept = {name: value for name, value in columns.items() if value is not None}
    return Exercise(question, solution or f"\\boxed{{{answer}}}", answer, kept)


def _level(value: object) -> str | None:
    """`Level 3`, as the original has it, and 3, as MATH-500 does, are the same level."""
    return None if value is None else str(value).removeprefix("Level ").strip()


class Gsm8kSettings(WordProblemsSettings):
    """GSM8K in its original format: `question`, and `answer` that ends in `#### n`."""

    kind: Literal["gsm8k"] = "gsm8k"
    """The kind of task."""
    dialect: ClassVar[Dialect] = Dialect(
        _read_gsm8k, "Think step by step, then end with a last line of the form: #### number"
    )


class MathSettings(WordProblemsSettings):
    """MATH in its original format: `problem`, `solution` with `\\boxed`, and perhaps `answer`, `level`, `type`."""

    kind: Literal["math"] = "math"
    """The kind of task."""
    dialect: ClassVar[Dialect] = Dialect(
        _read_math, "Think step by step, and put the final answer in \\boxed{}.", breakdown=("level", "subject")
    )
