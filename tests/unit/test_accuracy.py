"""Accuracy, its parts and its errors, with an engine that gives prepared answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tba.engines.base import Request
from tba.evaluations.accuracy import AccuracyEvaluator
from tba.evaluations.base import graded, no_progress
from tba.launch.evaluation import _write
from tba.launch.evaluation_tables import breakdown_table, values_table
from tba.rewards.scorer import Scorer
from tba.runs.run_config import answers_file
from tba.tasks.base import Problem
from tba.testing import FakeEngine, make_response
from tba.types import Prompt, Response

ROWS = [("1", "Algebra", "#### 7"), ("1", "Geometry", "#### 8"), ("2", "Algebra", "it is 7"), ("2", None, "none")]
PROBLEMS = [
    Problem(
        Prompt(str(i), text, (1,) * (2, 5, 1, 4)[i]),
        text,
        {"answer": "7", "level": level} | ({"subject": subject} if subject else {}),
    )
    for i, (level, subject, text) in enumerate(ROWS)
]


def echo(request: Request) -> list[Response]:
    """Answers a prompt with its own text."""
    return [make_response([1], text=request.prompt.text)] * request.num_responses


def evaluation(**settings: Any) -> Any:
    functions = ["final_answer_or_last_number", "by_last_number"]
    with Scorer([f"tba.rewards.answer:{name}" for name in functions], [1, 0], timeout_seconds=240) as scorer:
        defaults: dict[str, Any] = {"num_samples": 0, "success_reward": 0.5, "prompts_per_batch": 3}
        return AccuracyEvaluator(FakeEngine(echo), scorer, PROBLEMS, **defaults | settings)()


def test_the_longest_prompts_go_first_and_answers_keep_their_order() -> None:
    engine = FakeEngine(echo)
    with Scorer(["tba.rewards.answer:final_answer"], [1], timeout_seconds=240) as scorer:
        answers = graded(engine, scorer, PROBLEMS, 1, 2, greedy=True, progress=no_progress)
    assert [len(request.prompt.tokens) for request in engine.requests] == [5, 4, 2, 1]
    assert all(request.greedy and request.full_precision for request in engine.requests)
    assert [answer.response.text for (answer,) in answers] == [text for _, _, text in ROWS]


def test_accuracy_is_broken_down_by_column() -> None:
    values = evaluation(breakdown=("level", "subject")).values
    assert values["accuracy"] == 0.5
    assert {k: v for k, v in values.items() if "=" in k and not k.endswith("_se")} == {
        "accuracy/level=1": 0.5,
        "accuracy/level=1_n": 2,
        "accuracy/level=2": 0.5,
        "accuracy/level=2_n": 2,
        "accuracy/subject=Algebra": 1.0,
        "accuracy/subject=Algebra_n": 2,
        "accuracy/subject=Geometry": 0.0,
        "accuracy/subject=Geometry_n": 1,
    }
    assert values["accuracy/level=1_se"] == 0.5
    assert math.isnan(values["accuracy/subject=Geometry_se"]), "one prompt tells nothing of the spread"


def test_what_was_graded_by_its_last_number_is_shown_and_noted(tmp_path: Path) -> None:
    result = evaluation()
    assert result.values["rewards/by_last_number/mean"] == 0.25
    _write(tmp_path / "answers.jsonl", result.answers)
    records = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [r["rewards/by_last_number"] for r in records] == [0.0, 0.0, 1.0, 0.0]
    assert [r["response"] for r in records] == [text for _, _, text in ROWS]
    assert records[0]["column/level"] == "1"


def test_parts_are_a_table_of_their_own() -> None:
    values = evaluation(breakdown=("level",)).values
    assert [str(cell) for cell in breakdown_table(values).columns[0].cells] == ["level=1", "level=2"]
    assert not any("=" in str(cell) for cell in values_table("", values).columns[0].cells)


def test_samples_are_broken_down_no_further() -> None:
    values = evaluation(breakdown=("level",), num_samples=2).values
    assert values["pass@2"] == 0.5
    assert values["accuracy/level=1_n"] == 2


@pytest.mark.parametrize("in_a_run", [True, False])
def test_answers_lie_in_the_run_of_their_model_or_here(tmp_path: Path, in_a_run: bool) -> None:
    model = tmp_path / "checkpoints" / "step-000004" / "model"
    model.mkdir(parents=True)
    if in_a_run:
        (tmp_path / "config.toml").write_text("")
    path = answers_file(str(model), "gsm8k")
    assert path.parent == (tmp_path / "evaluations" if in_a_run else Path())
    assert path.suffix == ".jsonl"
    assert "step-000004-gsm8k" in path.name
