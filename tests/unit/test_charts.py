"""What trackers are sent of records: groups of charts, shares of time and rates in place of growing numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.runs.charts import Charts


def train(step: int, **values: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "time": 2.0 * step, **values}


def search(source: str, process_seconds: float, **values: Any) -> dict[str, Any]:
    return {"kind": "search", "step": 0, "time": 1.0, "source": source, "process_seconds": process_seconds, **values}


def test_the_names_of_trl_where_the_number_is_the_same() -> None:
    found = Charts().of(train(1, loss=1.0, clipped_fraction=0.1, **{"completions/mean_length": 7.0}))
    assert found == {
        "train/loss": 1.0,
        "train/clip_ratio/region_mean": 0.1,
        "train/completions/mean_length": 7.0,
    }


def test_speed_is_that_of_the_time_between_two_steps() -> None:
    charts = Charts()
    assert not any(name.startswith("perf/") for name in charts.of(train(1, tokens=100)))
    found = charts.of(train(3, tokens=200))
    assert (found["perf/step_s"], found["perf/trained_tok_s_wall_clock"]) == (4.0, 50.0)


def test_time_is_shares_of_the_time_since_the_last_record() -> None:
    charts = Charts()
    first = charts.of(train(1, process_seconds=10.0, **{"seconds/compute": 4.0, "seconds/wait": 6.0}))
    assert (first["time/compute"], first["time/wait"]) == (0.4, 0.6)
    second = charts.of(
        train(2, process_seconds=12.0, **{"seconds/compute": 5.5, "seconds/wait": 6.0, "seconds/publish": 0.5})
    )
    assert (second["time/compute"], second["time/wait"], second["time/publish"]) == (0.75, 0.0, 0.25)
    assert not any(name.startswith("seconds") or name == "train/process_seconds" for name in second)


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100)), min_size=2, max_size=10))
def test_shares_add_up_to_one_and_rates_to_the_growth(spent: list[tuple[int, int]]) -> None:
    """Whatever each interval was spent on."""
    charts, totals, seconds, count = Charts(), Counter[str](), 0, 0
    for number, (work, wait) in enumerate(spent):
        totals.update({"seconds/generate": work, "seconds/wait": wait})
        seconds, count = seconds + work + wait, count + work
        found = charts.of(search("searcher-0", seconds, **totals, **{"responses/generated": count}))
        shares = [value for name, value in found.items() if name.startswith("search_time/")]
        assert sum(shares) == pytest.approx(1.0)
        assert found.get("responses/generated_per_second") == (pytest.approx(work / (work + wait)) if number else None)


def test_each_searcher_is_compared_with_itself() -> None:
    charts = Charts()
    charts.of(search("searcher-0", 10.0, **{"responses/generated": 100}))
    charts.of(search("searcher-1", 10.0, **{"responses/generated": 900}))
    found = charts.of(search("searcher-0", 12.0, **{"responses/generated": 140, "responses/pending": 3}))
    assert found["responses/generated_per_second"] == 20.0
    assert found["responses/pending"] == 3.0, "a number of now, and no total"


def test_an_evaluation_keeps_its_names_and_texts_are_left_out() -> None:
    record = {"kind": "eval", "step": 3, "time": 1.0, "source": "searcher-0", "accuracy": 0.5, "diversity_missing": "x"}
    assert Charts().of(record) == {"eval/accuracy": 0.5}
