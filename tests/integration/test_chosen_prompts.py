"""Runs whose Searchers prefer prompts that are solved sometimes (`searcher.prompts = "solve_rate"`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_runs import (
    INLINE,
    rollouts,
    same_weights,
    small_config,
    timeless_records,
    train_records,
    weights,
)

from tba.api import resume, start
from tba.config.settings import Config
from tba.learn.checkpoint import list_checkpoints

CHOOSING = {"prompts": "solve_rate", "num_searchers": 2, "skip_equal_rewards": True}
"""Skipped groups are in no log: their part of what is known comes from the checkpoint."""


def choosing(root: Path, name: str) -> Config:
    return small_config(root, name, run=INLINE, searcher=CHOOSING, checkpoint={"period": 2}, evaluation={"period": 0})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(choosing(tmp_path_factory.mktemp("chosen"), "whole")).run


def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "again"
    shutil.copytree(whole, run)
    (run / "config.toml").write_text(
        (whole / "config.toml").read_text("utf-8").replace(str(whole.parent), str(tmp_path)).replace("whole", "again"),
        "utf-8",
    )
    for later in (6, 8):
        shutil.rmtree(run / "checkpoints" / f"step-{later:06d}")
    resume(run)
    assert same_weights(weights(run, 8), weights(whole, 8))
    assert train_records(run) == train_records(whole)
    assert timeless_records(run, "search") == timeless_records(whole, "search")
    assert rollouts(run)["response"].tolist() == rollouts(whole)["response"].tolist()


def test_what_was_skipped_is_known_too(whole: Path) -> None:
    state = list_checkpoints(whole)[-1].state()
    known = {prompt_id: squares for prompt_id, (_, squares) in state["spreads"]["entries"].items()}
    logged = set(rollouts(whole)["prompt_id"])
    skipped = sum(record["groups_skipped"] for record in timeless_records(whole, "search"))
    assert skipped > 0
    assert set(known) - logged, "prompts all of whose groups were skipped"
    assert all(known[prompt_id] == 0 for prompt_id in set(known) - logged)
    assert max(known.values()) > 0


def test_processes_choose_too(tmp_path: Path) -> None:
    config = small_config(
        tmp_path, "local", searcher={"prompts": "solve_rate"}, trainer={"num_steps": 4}, evaluation={"period": 0}
    )
    result = start(config)
    assert result.finished
    state = list_checkpoints(result.run)[-1].state()
    known = {*state["spreads"]["entries"], *(prompt_id for prompt_id, *_ in state["spreads"]["arrived"])}
    logged = rollouts(result.run)
    assert known == set(logged[logged["merge"] < state["log_position"]]["prompt_id"])
    assert state["spreads"]["entries"], "published"
