"""Generators of reasoning-gym as tasks. Skipped where the extra is not installed."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import pytest

from tba.config.settings import load_config, parse_config, to_toml
from tba.config.text import parse_overrides
from tba.rewards.functions import resolve
from tba.rewards.reasoning_gym import tagged_answer
from tba.tasks.base import Task
from tba.types import TbaError

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs the extra reasoning-gym"
)


def load(name: str, **settings: Any) -> Task:
    config = load_config(None, {"model": "m", "task": {"kind": "reasoning-gym", "name": name, **settings}})
    return config.task.load(lambda content: (str(content), (1,)))


def asked(task: Task, part: str) -> set[str]:
    return {problem.columns["entry"]["question"] for problem in getattr(task, part)}


@needs_package
@pytest.mark.parametrize(
    "settings", [{}, {"settings": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}]
)
def test_no_held_out_question_is_trained_on(settings: dict[str, Any]) -> None:
    """The second generator has few questions, so it repeats itself across seeds."""
    task = load("chain_sum", num_train=100, num_eval=20, **settings)
    assert not asked(task, "train") & asked(task, "held_out")
    assert len(asked(task, "train")) == len(task.train)
    assert len(task.train) + len(task.held_out) + sum(task.skipped.values()) == 120
    assert bool(task.skipped) == bool(settings)


@needs_package
def test_question_sets_of_other_seeds_are_other_questions() -> None:
    settings = {"min_digits": 6, "max_digits": 8, "min_terms": 4, "max_terms": 6}
    sets = [asked(load("chain_sum", num_train=40, num_eval=40, seed=seed, settings=settings), part)
            for seed in (0, 1) for part in ("train", "held_out")]  # fmt: skip
    assert sum(map(len, sets)) == len(set.union(*sets)) == 160


@needs_package
@pytest.mark.parametrize("name", ["chain_sum", "prime_factorization", "sudoku", "countdown"])
def test_its_own_scorer_is_the_reward_and_travels(name: str) -> None:
    task = load(name, num_train=3, num_eval=1)
    reward = resolve(pickle.loads(pickle.dumps(task.default_reward)))
    columns = pickle.loads(pickle.dumps([dict(problem.columns) for problem in task.train]))
    entries = [c["entry"] for c in columns]
    right = [f"So <answer>{c['answer']}</answer>" for c in columns]
    assert reward(completions=right, entry=entries) == [1.0, 1.0, 1.0]
    wrong = reward(completions=["I give up", "<answer>xx yy</answer>", ""], entry=entries)
    assert all(value < 0.5 for value in wrong), "an answer the scorer cannot read is wrong and raises nothing"
    assert wrong[0] == wrong[2] == 0.0


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> no, <answer>\n1 2\n3 4\n</answer>", "1 2\n3 4"),
        ("#### 7", "7"),
        ("\\boxed{7}", "7"),
        ("<answer>7", None),
    ],
)
def test_an_answer_is_taken_from_its_mark(text: str, answer: str | None) -> None:
    assert tagged_answer(text) == answer


@needs_package
def test_an_unknown_generator_names_its_neighbours() -> None:
    with pytest.raises(TbaError, match="chain_sum"):
        load("chain_summ")


@needs_package
@pytest.mark.parametrize("settings", [{"no_such": 1}, {"min_terms": 5, "max_terms": 2}])
def test_settings_the_generator_refuses_are_an_error(settings: dict[str, Any]) -> None:
    with pytest.raises(TbaError, match=r"task\.settings"):
        load("chain_sum", settings=settings)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tba.tasks.reasoning_gym.find_spec", lambda name: None)
    with pytest.raises(TbaError, match=r"trajectory-balance\[reasoning-gym\]"):
        load("chain_sum")


@pytest.mark.parametrize(
    "words",
    [
        ["--task.settings.max-terms", "4", "--task.settings.style", "x y"],
        ["--task.settings", '{"max_terms": 4, "style": "x y"}'],
    ],
)
def test_settings_of_the_generator_are_read_and_written_as_a_table(words: list[str]) -> None:
    import tomllib

    config = load_config(
        None, parse_overrides(["--model", "m", "--task", "reasoning-gym", "--task.name", "chain_sum", *words])
    )
    assert config.task.settings == {"max_terms": 4, "style": "x y"}
    assert parse_config(tomllib.loads(to_toml(config)), {}) == config
