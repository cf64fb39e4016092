"""What GSM8K and MATH have in common: rows become problems with an answer that can be graded.

A task says how to read one of its rows and which mark it asks for; prompts, shots and held-out rows are made here.
Rows that cannot be graded are left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tba.config_tasks import Gsm8kTaskConfig, MathTaskConfig
from tba.tasks.base import Content, Encode, Problem, Task
from tba.tasks.rows import Row, read_rows
from tba.types import Prompt, TbaError

Config = Gsm8kTaskConfig | MathTaskConfig


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


def load(config: Config, encode: Encode, dialect: Dialect) -> Task:
    """Held out: all of `eval_data`, or else the last `num_eval` usable rows. Shots: the first, never held out."""
    skipped: Counter[str] = Counter()
    train = _read(config.data, config.split, dialect, skipped) if config.data is not None else {}
    if config.eval_data is not None:
        held_out = _read(config.eval_data, config.eval_split, dialect, skipped)
    elif config.data is not None:
        train, held_out = _split(train, config.num_eval, config.data)
    else:
        raise TbaError("task.data is missing: name the training rows (or task.eval_data, to evaluate only)")
    train = _without(train, held_out, skipped)
    if config.max_solution_lines is not None and train:
        train = _short(train, config.max_solution_lines, skipped)
    if config.num_shots > len(train):
        raise TbaError(
            f"task.num_shots = {config.num_shots} is more than the {len(train)} training rows: "
            "take fewer shots, or give more rows in task.data"
        )
    shots = list(islice(train.values(), config.num_shots))
    end = None if config.num_problems is None else config.num_shots + config.num_problems
    train = dict(islice(train.items(), config.num_shots, end))  # the model would only copy what it is shown

    def problems(exercises: Exercises, stem: str) -> list[Problem]:
        return [_problem(f"{stem}-{row}", e, shots, config, dialect, encode) for row, e in exercises.items()]

    graded_by = "final_answer_or_last_number" if config.last_number else "final_answer"
    return Task(
        name=config.kind,
        train=problems(train, config.kind),
        held_out=problems(held_out, f"{config.kind}-eval"),
        default_reward=f"tba.rewards.answer:{graded_by}",
        skipped=dict(skipped),
        observers=("tba.rewards.answer:by_last_number",) if config.last_number else (),
        breakdown=dialect.breakdown,
    )


def required_text(row: Row, column: str) -> str:
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


def _split(exercises: Exercises, num_eval: int, source: str) -> tuple[Exercises, Exercises]:
    num_train = len(exercises) - num_eval
    if num_train < 1:
        raise TbaError(
            f"task.num_eval = {num_eval} leaves none of the {len(exercises)} usable rows of {source} to train on: "
            "lower task.num_eval, or give task.eval_data"
        )
    items = list(exercises.items())
    return dict(items[:num_train]), dict(items[num_train:])


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
    id: str, exercise: Exercise, shots: Sequence[Exercise], config: Config, dialect: Dialect, encode: Encode
) -> Problem:
    content = (
        _chat(exercise, shots, config, dialect) if config.prompt_style == "chat" else _plain(exercise, shots, config)
    )
    text, tokens = encode(content)
    columns = {**exercise.columns, "answer": exercise.answer, "solution": exercise.solution}
    return Problem(Prompt(id, text, tokens), content, columns, demonstration=exercise.solution)


def _chat(exercise: Exercise, shots: Sequence[Exercise], config: Config, dialect: Dialect) -> Content:
    instruction = dialect.instruction if config.instruction is None else config.instruction
    messages = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
    for shot in shots:
        messages.append({"role": "user", "content": _asked(shot, instruction)})
        messages.append({"role": "assistant", "content": shot.solution})
    return [*messages, {"role": "user", "content": _asked(exercise, instruction)}]


def _plain(exercise: Exercise, shots: Sequence[Exercise], config: Config) -> Content:
    def posed(asked: Exercise) -> str:
        # Not str.format: problems and templates hold braces of their own.
        return config.template.replace("{question}", _asked(asked, config.instruction or ""))

    return "".join(f"{posed(shot)}{shot.solution}\n\n" for shot in shots) + posed(exercise)


def _asked(exercise: Exercise, instruction: str) -> str:
    return f"{exercise.question}\n\n{instruction}" if instruction else exercise.question
