"""Runs that end before their last step: by a callback in either launcher, or for want of progress."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_runs import INLINE, assert_accounts_add_up, records, small_config, train_records

import tba
from tba.api import resume, start
from tba.learn.checkpoint import list_checkpoints

NO_BETTER = {"evaluation": {"period": 2, "patience": 2, "success_reward": 1e9}}
"""No response is ever right, so that no evaluation is better than the first."""


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_callback_ends_a_run_in_order_and_a_resume_goes_on(tmp_path: Path, launcher: str) -> None:
    steps: list[int] = []

    def until_the_second_step(step: int, metrics: Mapping[str, Any]) -> str | None:
        if metrics["kind"] == "train":
            steps.append(step)
        return "stop" if step >= 2 else None

    num_steps = 8 if launcher == "inline" else 100_000
    config = small_config(tmp_path, "run", run={"launcher": launcher}, trainer={"num_steps": num_steps})
    result = start(config, callbacks=[until_the_second_step])
    assert (result.finished, result.stopped_early) == (False, True)
    assert steps[:2] == [1, 2]
    saved = list_checkpoints(result.run)[-1].step
    assert saved == train_records(result.run)[-1]["step"] >= 2, "the newest weights are saved"
    assert json.loads((result.run / "summary.json").read_text())["steps"] == saved
    later: list[int] = []
    result = resume(
        result.run, {"trainer": {"num_steps": saved + 2}}, callbacks=[lambda step, metrics: later.append(step)]
    )
    assert (result.finished, result.stopped_early) == (True, False)
    assert max(later) == saved + 2
    assert_accounts_add_up(result.run)


def test_an_error_of_a_callback_is_raised_once_the_run_is_saved(tmp_path: Path) -> None:
    def fails(step: int, metrics: Mapping[str, Any]) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        start(small_config(tmp_path, "run", run=INLINE), callbacks=[fails])
    assert list_checkpoints(tmp_path / "run")


def test_a_run_without_progress_ends_early_and_goes_on_with_more_patience(tmp_path: Path) -> None:
    config = small_config(tmp_path, "run", run=INLINE, **NO_BETTER)
    result = start(config)
    assert (result.finished, result.stopped_early) == (False, True)
    assert [r["step"] for r in records(result.run, "eval")] == [0, 2, 4]
    (event,) = [r for r in records(result.run, "event") if r["event"] == "stopped_early"]
    assert "2 evaluations in a row brought no better accuracy than 0.000 of step 0" in event["message"]
    stopped_at = list_checkpoints(result.run)[-1].step
    assert stopped_at < 8
    with pytest.raises(tba.TbaError, match=r"has ended: 2 evaluations .* larger evaluation\.patience"):
        resume(result.run)
    assert resume(result.run, {"evaluation": {"patience": 0}}).finished
    assert train_records(result.run)[-1]["step"] == 8
