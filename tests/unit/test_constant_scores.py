"""A reward function whose scores are one constant is named, once, with the form of its input."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tba.rewards.scoring import Scores
from tba.search.constant_scores import FIRST_GROUPS, ConstantScores
from tba.tasks.base import Problem
from tba.types import Prompt

PLAIN = Problem(Prompt("p", "", (1,)), "2+2=", {})
CHAT = Problem(Prompt("p", "", (1,)), [{"role": "user", "content": "2+2="}], {})


def events(
    parts_of_groups: list[tuple[tuple[float, ...], ...]], names: str = "a", problem: Problem = PLAIN, **given: Any
) -> list[dict[str, Any]]:
    watch = ConstantScores(given.get("weights", (1.0,) * len(names)))
    found = []
    for parts in parts_of_groups:
        found += list(watch.look(problem, Scores((0.0,) * len(parts), parts, ()), names))
    return found


ZEROS = ((0.0,), (0.0,))


def test_it_is_told_once_and_not_before_there_are_enough_groups() -> None:
    assert events([ZEROS] * (FIRST_GROUPS - 1)) == []
    [event] = events([ZEROS] * 5 * FIRST_GROUPS)
    assert (event["event"], event["function"]) == ("constant_reward", "a")
    assert f"gave 0 to all {2 * FIRST_GROUPS} responses to the first {FIRST_GROUPS} prompts" in event["message"]


@pytest.mark.parametrize(
    ("problem", "form"), [(PLAIN, "lists of strings"), (CHAT, "lists of messages")], ids=["plain", "chat"]
)
def test_the_form_of_the_input_is_named(problem: Problem, form: str) -> None:
    [event] = events([ZEROS] * FIRST_GROUPS, problem=problem)
    assert form in event["message"]
    assert "\n" not in event["message"]


def test_one_other_score_is_enough_to_be_quiet() -> None:
    assert events([ZEROS] * (FIRST_GROUPS - 1) + [((0.0,), (1.0,))]) == []


def test_scores_that_are_equal_within_each_group_only_are_not_constant() -> None:
    assert events([((float(i),), (float(i),)) for i in range(FIRST_GROUPS)]) == []


def test_functions_are_told_apart() -> None:
    [event] = events([((0.0, 1.0), (1.0, 1.0))] * FIRST_GROUPS, names="ab")
    assert event["function"] == "b"


def test_groups_that_a_function_does_not_apply_to_do_not_count() -> None:
    none = ((math.nan,), (math.nan,))
    assert events([none] * 3 * FIRST_GROUPS) == []
    assert len(events([none, ((2.0,), (math.nan,))] * FIRST_GROUPS)) == 1


def test_what_weighs_nothing_may_be_constant() -> None:
    assert events([ZEROS] * FIRST_GROUPS, weights=(0.0,)) == []
