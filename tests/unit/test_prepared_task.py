"""A task is prepared by one process of a run, and the others read the same problems."""

from __future__ import annotations

import json
import multiprocessing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tba.rewards.functions import RewardFactory
from tba.tasks import custom
from tba.tasks.base import Problem, Task
from tba.tasks.prepared import PROMPTS, StoredProblems, prepared, prepared_anew, read
from tba.types import Prompt

MESSAGES = [{"role": "user", "content": "Übung \u2028 ☃"}]


def problem(number: int, columns: dict[str, Any], content: Any = "what?") -> Problem:
    return Problem(Prompt(f"p-{number}", f"text {number}", (number, 70_000)), content, columns, None)


def task(*columns: dict[str, Any]) -> Task:
    problems = [problem(number, values) for number, values in enumerate(columns)]
    return Task("own", problems[:-1], problems[-1:], RewardFactory("a:b", {"x": 1.5}), {"why": 3}, ("m:f",), ("level",))


def same(left: Task, right: Task) -> bool:
    parts = [(left.train, right.train), (left.held_out, right.held_out)]
    others = ("name", "default_reward", "skipped", "observers", "breakdown")
    return all(list(a) == list(b) for a, b in parts) and all(getattr(left, n) == getattr(right, n) for n in others)


def never() -> Task:
    raise AssertionError("it was prepared twice")


def test_the_second_gets_what_the_first_has_prepared(tmp_path: Path) -> None:
    made = task({"answer": "4", "nested": [{"a": None}, 1.0, True]}, {"level": 3}, {})
    assert prepared(tmp_path, lambda: made) is made
    again = prepared(tmp_path, never)
    assert isinstance(again.train, StoredProblems)
    assert same(again, made)
    assert type(again.train[0].columns["nested"][1]) is float


def test_problems_are_a_sequence(tmp_path: Path) -> None:
    made = task(*({"answer": number} for number in range(10)))
    prepared(tmp_path, lambda: made)
    train = read(tmp_path / PROMPTS).train
    assert (len(train), train[-1], list(train[2:5]), train[:3][1]) == (
        9, made.train[8], list(made.train[2:5]), made.train[1],
    )  # fmt: skip
    with pytest.raises(IndexError):
        train[9]


def test_messages_and_demonstrations_come_back(tmp_path: Path) -> None:
    chat = Problem(Prompt("a", "t", (1,)), MESSAGES, {}, " a summary")
    prepared(tmp_path, lambda: Task("t", [chat], [], "m:f"))
    again = prepared(tmp_path, never)
    assert again.train[0] == chat
    assert again.train[0].conversational
    assert list(again.held_out) == []


@pytest.mark.parametrize("value", [(1, 2), {1: "a"}, date(2020, 1, 1), float("nan"), b"x", {3}, "\ud800"])
def test_what_json_would_change_is_not_shared(tmp_path: Path, value: Any) -> None:
    if value == "\ud800":
        made = Task("t", [Problem(Prompt("a", value, (1,)), "c", {})], [], None)
    else:
        made = task({"value": value}, {})
    assert prepared(tmp_path, lambda: made) is made
    assert prepared(tmp_path, lambda: made) is made
    assert not (tmp_path / PROMPTS).exists()


def test_a_launch_begins_and_ends_without_what_was_prepared(tmp_path: Path) -> None:
    prepared(tmp_path, lambda: task({}, {}))
    with prepared_anew(tmp_path):
        assert list(tmp_path.iterdir()) == []
        prepared(tmp_path, lambda: task({"new": 1}, {}))
        assert prepared(tmp_path, never).train[0].columns == {"new": 1}
    assert list(tmp_path.iterdir()) == []


def prepare_and_count(run: Path, data: Path, log: Path) -> None:
    def make() -> Task:
        with open(log, "a") as file:
            file.write("prepared\n")
        return custom.Settings(data=str(data), num_eval=2).load(lambda content: (str(content), (1, 2, 3)))

    found = prepared(run, make)
    assert [p.columns["answer"] for p in found.train] == list(range(18))


def test_processes_that_start_together_prepare_once(tmp_path: Path) -> None:
    data, log = tmp_path / "rows.jsonl", tmp_path / "log"
    data.write_text("".join(json.dumps({"prompt": str(i), "answer": i}) + "\n" for i in range(20)))
    context = multiprocessing.get_context("spawn")
    several = [context.Process(target=prepare_and_count, args=(tmp_path, data, log)) for _ in range(3)]
    for process in several:
        process.start()
    for process in several:
        process.join()
    assert [process.exitcode for process in several] == [0, 0, 0]
    assert log.read_text() == "prepared\n"


def test_one_that_fails_leaves_it_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        prepared(tmp_path, never)
    made = task({}, {})
    assert prepared(tmp_path, lambda: made) is made
