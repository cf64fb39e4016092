"""What `tba eval` shows: passes over the prompts while it works, and then every number with words and its error."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tba.evaluations.accuracy import AccuracyEvaluator
from tba.evaluations.base import Pass, follow_passes
from tba.launch.evaluation_tables import breakdown_table, values_table
from tba.tasks import KINDS, settings_of


def shown(*tables: Any) -> list[list[str]]:
    """The cells of the rows."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*tables)
    lines = [line for line in console.export_text().splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_an_error_that_cannot_be_known_is_a_dash() -> None:
    values = {"accuracy": 0.5, "accuracy_se": math.nan, "accuracy/level=3": 1.0, "accuracy/level=3_se": math.nan}
    values |= {"accuracy/level=3_n": 1, "reward": math.nan, "reward_se": math.nan, "pass@4": 0.25, "pass@4_se": 0.125}
    assert shown(values_table("x", values)) == [
        ["accuracy of greedy responses", "0.5000", "–", "accuracy"],
        ["reward of greedy responses, mean", "–", "–", "reward"],
        ["share of prompts solved within 4 sampled responses", "0.2500", "± 0.1250", "pass@4"],
    ]
    assert shown(breakdown_table(values)) == [["level=3", "1", "1.0000", "–"]]


def test_intervals_stand_beside_their_number() -> None:
    values = {
        "attack_success_rate": 0.5,
        "attack_success_rate_se": 0.05,
        "attack_success_rate_low": 0.4,
        "attack_success_rate_high": 0.6,
        "diversity_missing": "set evaluation.embedding_model",
    }
    assert shown(values_table("x", values)) == [
        ["share of attacks that succeed", "0.5000", "± 0.0500 (95 %: 0.4000 to 0.6000)", "attack_success_rate"],
        ["diversity of attacks is not measured", "set evaluation.embedding_model", "", "diversity_missing"],
    ]


def test_a_number_without_words_of_its_own_is_shown_by_its_name() -> None:
    values = {"rewards/brevity/mean": 0.25, "my_own_number": 3, "c\x1b[2J": 1.0}
    [brevity, own, wild] = shown(values_table("x", values))
    assert brevity == ["reward of brevity, mean", "0.2500", "", "rewards/brevity/mean"]
    assert own == ["my own number", "3", "", "my_own_number"]
    assert wild[0] == "c\\x1b[2J"


@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.data())
def test_progress_is_told_pass_by_pass(lengths: list[int], data: st.DataObject) -> None:
    """However the prompts that are done arrive."""
    told: list[tuple[str, int, list[int]]] = []

    def begin(what: str, total: int) -> Any:
        heard: list[int] = []
        told.append((what, total, heard))
        return heard.append

    advance = follow_passes([Pass(str(number), length) for number, length in enumerate(lengths)], begin)
    assert [what for what, _, _ in told] == ["0"], "the first begins at once"
    left = sum(lengths)
    while left:
        done = data.draw(st.integers(1, left))
        advance(done)
        left -= done
    assert [(what, total, sum(heard)) for what, total, heard in told] == [
        (str(number), length, length) for number, length in enumerate(lengths)
    ]


@pytest.mark.parametrize(("num_samples", "passes"), [(0, 1), (16, 2)])
def test_greedy_and_sampled_responses_are_two_passes(num_samples: int, passes: int) -> None:
    evaluator = AccuracyEvaluator(None, None, [None] * 256, num_samples, 0.5, 64)  # type: ignore[arg-type,list-item]
    assert [one.num_prompts for one in evaluator.passes] == [256] * passes
    assert "greedily" in evaluator.passes[0].what
    if num_samples:
        assert "16 samples each" in evaluator.passes[1].what


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_offered_at_the_end_of_a_run_fits_its_task(kind: str) -> None:
    """Samples are worth it where a response is right or wrong; an attack and a summary are sampled anyway."""
    headline = settings_of(kind).headline
    assert (headline.eval_flags == "--evaluation.num-samples 16") == (headline.metric == "accuracy")
