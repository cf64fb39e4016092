from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.runs.metrics import Metrics
from tba.runs.progress import evaluation_text
from tba.runs.summary import REWARD_WINDOW, SUMMARY, summarise, write_summary
from tba.tasks import headline_of

DESIGN_KEYS = {
    "accuracy_first",
    "accuracy_last",
    "reward_first",
    "reward_last",
    "steps",
    "wall_seconds",
    "tokens_generated",
    "tokens_trained",
    "trainer_wait_fraction",
    "searcher_wait_fraction",
    "publish_fraction",
    "staleness_p50",
    "staleness_p90",
    "staleness_max",
}


def train(step: int, *, counts: dict[int, int] | None = None, **values: Any) -> dict[str, Any]:
    fixed = {"kind": "train", "step": step, "time": float(step), "reward": step / 10, "num_tokens": 100 * step}
    return fixed | {"staleness/counts": {str(k): v for k, v in (counts or {0: 1}).items()}} | values


def search(source: str, **values: Any) -> dict[str, Any]:
    fixed = {"kind": "search", "step": 1, "time": 1.0, "source": source, "tokens": 50, "kl": 0.1, "reward": 0.5}
    return fixed | {"failed": 0, "groups_dropped": 0} | values


def evaluation(step: int, accuracy: float) -> dict[str, Any]:
    return {"kind": "eval", "step": step, "time": 1.0, "accuracy": accuracy, "accuracy_se": 0.01}


def test_a_run_that_did_nothing_has_every_key(tmp_path: Path) -> None:
    summary = summarise([])
    assert set(summary) >= DESIGN_KEYS
    assert summary == summarise([{"kind": "event", "step": 0, "time": 0.0, "event": "x"}])
    assert (summary["steps"], summary["wall_seconds"], summary["accuracy_first"]) == (0, 0.0, None)


def test_a_summary_is_flat_and_written_whole(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for record in (train(1), search("searcher-0"), evaluation(0, 0.5)):
        metrics.write(record.pop("kind"), record.pop("step"), record)
    metrics.close()
    summary = write_summary(tmp_path)
    assert set(summary) >= DESIGN_KEYS
    assert all(value is None or isinstance(value, (int, float, str)) for value in summary.values())
    assert json.loads((tmp_path / SUMMARY).read_text("utf-8")) == summary
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", SUMMARY}


def test_accuracies_are_in_order_of_their_weights(tmp_path: Path) -> None:
    """Evaluations run in a Searcher, and may be reported late."""
    summary = summarise([evaluation(50, 0.6), evaluation(0, 0.2), evaluation(150, 0.5), evaluation(100, 0.9)])
    assert (summary["accuracy_first"], summary["accuracy_last"], summary["accuracy_best"]) == (0.2, 0.5, 0.9)


def test_rewards_are_means_over_the_first_and_last_reports_of_searchers() -> None:
    count = 3 * REWARD_WINDOW
    reports = [search("searcher-0", reward=float(number)) for number in range(1, count + 1)]
    summary = summarise([*reports, train(count, reward=1000.0)])
    assert summary["reward_first"] == pytest.approx((1 + REWARD_WINDOW) / 2)
    assert summary["reward_last"] == pytest.approx((count - REWARD_WINDOW + 1 + count) / 2)
    assert summary["steps"] == count


def test_tokens_are_counted_and_divided_by_the_time_of_the_run() -> None:
    summary = summarise(
        [train(1), train(20), search("searcher-0", tokens=30), search("searcher-1", tokens=40, time=10.0)]
    )
    assert (summary["tokens_generated"], summary["tokens_trained"], summary["wall_seconds"]) == (70, 2000, 20.0)
    assert (summary["tokens_generated_per_second"], summary["tokens_trained_per_second"]) == (3.5, 100.0)


def test_staleness_is_counted_by_trajectory() -> None:
    summary = summarise([train(1, counts={0: 5, 3: 3}), train(2, counts={1: 1, 40: 1})])
    # In order: five 0, one 1, three 3, one 40.
    assert (summary["staleness_p50"], summary["staleness_p90"], summary["staleness_max"]) == (0, 3, 40)


@given(st.lists(st.dictionaries(st.integers(0, 30), st.integers(1, 5), min_size=1), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_staleness_quantiles_are_those_of_the_values(steps: list[dict[int, int]]) -> None:
    summary = summarise([train(i + 1, counts=counts) for i, counts in enumerate(steps)])
    values = [value for counts in steps for value, count in counts.items() for _ in range(count)]
    for key, share in (("staleness_p50", 0.5), ("staleness_p90", 0.9)):
        assert summary[key] == np.quantile(values, share, method="inverted_cdf")
    assert summary["staleness_max"] == max(values)


def seconds(**spent: float) -> dict[str, float]:
    return {f"seconds/{kind}": value for kind, value in spent.items()}


def test_fractions_are_of_the_time_from_the_first_step_to_the_last() -> None:
    """What each activity has taken is reported as a running total, the fill before the first step included."""
    summary = summarise(
        [
            train(1, **seconds(fill=50.0, compute=1.0, wait=9.0)),
            train(2, **seconds(fill=50.0, compute=5.0, wait=10.0, publish=1.0)),
            train(3, **seconds(fill=50.0, compute=8.0, wait=11.0, publish=2.0)),
        ]
    )
    assert summary["trainer_wait_fraction"] == pytest.approx(2 / 11, abs=1e-5)
    assert summary["publish_fraction"] == pytest.approx(2 / 11, abs=1e-5)


def test_totals_that_start_again_after_a_resume_do_not_count_backwards() -> None:
    summary = summarise(
        [
            train(1, **seconds(compute=10.0, wait=0.0)),
            train(2, **seconds(compute=20.0, wait=0.0)),
            train(3, **seconds(compute=1.0, wait=1.0)),
            train(4, **seconds(compute=1.0, wait=11.0)),
        ]
    )
    assert summary["trainer_wait_fraction"] == pytest.approx(0.5)


def test_a_run_of_one_step_has_no_fractions_of_time() -> None:
    summary = summarise([train(1, **seconds(compute=1.0))])
    assert (summary["trainer_wait_fraction"], summary["publish_fraction"]) == (None, None)


def test_searchers_wait_for_weights_or_to_be_heard() -> None:
    summary = summarise(
        [
            search("searcher-0", **seconds(generate=1.0, wait=1.0)),
            search("searcher-0", **seconds(generate=6.0, wait=2.0)),
            search("searcher-1", **seconds(generate=1.0, send=1.0)),
        ]
    )
    assert summary["searcher_wait_fraction"] == pytest.approx(3 / 10)


def test_failed_rewards_dropped_groups_and_restarts_are_added_up() -> None:
    restarted = {"kind": "event", "step": 0, "time": 0.0, "event": "searcher_restarted"}
    summary = summarise(
        [search("searcher-0", failed=2, groups_dropped=1), search("searcher-1", failed=3), restarted, restarted]
    )
    assert (summary["rewards_failed"], summary["groups_dropped"], summary["searchers_restarted"]) == (5, 1, 2)


def test_a_reward_of_ones_own_is_judged_by_its_mean_on_held_out_prompts() -> None:
    """Not by how many are above one half; and the reward of new responses keeps its own name."""
    headline = headline_of("custom")
    evals = [
        {"kind": "eval", "step": step, "time": 1.0, "reward": reward, "reward_se": 0.1, "accuracy": 0.0}
        for step, reward in ((0, -0.5), (10, -0.1), (20, -0.2))
    ]
    summary = summarise(evals, headline)
    assert summary["judged_by"] == "held_out_reward"
    names = ("first", "last", "last_se", "best")
    assert [summary[f"held_out_reward_{name}"] for name in names] == [-0.5, -0.2, 0.1, -0.1]
    assert (summary["reward_first"], summary["accuracy_last"]) == (None, 0.0)
    assert evaluation_text(evals[0], headline) == "reward -0.500 ± 0.100"
