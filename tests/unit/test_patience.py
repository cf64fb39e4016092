"""When a run ends early."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.config.settings import Config
from tba.runs.patience import Patience
from tba.types import TbaError


def evaluation(version: int, value: float | None, **others: Any) -> dict[str, Any]:
    return {"kind": "eval", "step": version, "version": version, "accuracy": value, **others}


def patience(limit: int) -> Patience:
    return Patience(limit, lambda values: "accuracy")


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 4))
def test_it_ends_with_the_first_stretch_without_a_new_best(values: list[int], limit: int) -> None:
    one = patience(limit)
    ended = None
    for number, value in enumerate(values):
        one.take(evaluation(number, float(value)))
        if one.has_ended:
            ended = number
            break
    expected = None
    for number in range(len(values)):
        best_at = values.index(max(values[: number + 1]))
        if number - best_at >= limit:
            expected = number
            break
    assert ended == expected


def test_what_was_not_measured_or_was_measured_before_does_not_count() -> None:
    one = patience(1)
    one.take_all([evaluation(0, 0.5), {"kind": "train", "step": 1}, evaluation(2, None), evaluation(4, math.nan)])
    one.take(evaluation(0, 0.5))
    assert not one.has_ended
    one.take(evaluation(0, 0.5, epoch=1))
    assert one.has_ended, "another epoch has other weights"
    assert one.message.startswith("1 evaluations in a row brought no better accuracy than 0.500 of step 0")


def test_patience_needs_evaluations() -> None:
    with pytest.raises(TbaError, match=r"evaluation\.patience needs evaluations"):
        Config.embedded(evaluation={"patience": 2, "period": 0})
