"""Runs whose data all have one age, and runs with early syncs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import (
    INLINE,
    arguments,
    assert_nothing_doubled,
    rollouts,
    same_weights,
    small_config,
    tba_here,
    timeless_records,
    train_records,
    weights,
)

from tba.api import resume, start
from tba.launch.replay import replay_run
from tba.learn.epochs import Epochs
from tba.runs.ledger import FATES

OTHERWISE: dict[str, dict[str, Any]] = {
    "evaluation": {"period": 0},
    # None of these matters.
    "buffer": {"recent_fraction": 0.0, "capacity_per_prompt": 5},
}


def staleness_config(root: Path, name: str, staleness: int, **sections: Any) -> Any:
    trainer = {"staleness": staleness, "initial_groups": 7, "sync_period": 5, "early_syncs": True}
    merged = {**OTHERWISE, "run": INLINE, **sections, "trainer": {**trainer, **sections.get("trainer", {})}}
    return small_config(root, name, **merged)


def ages(run: Path) -> list[dict[str, int]]:
    return [record["staleness/counts"] for record in train_records(run)]


def drawn_rows(run: Path) -> list[list[list[int]]]:
    return [json.loads(line)["rows"] for line in (run / "draws.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("staleness", "num_searchers"), [(0, 2), (1, 1), (3, 2)])
def test_every_trajectory_has_exactly_that_age_and_is_used_once(
    tmp_path: Path, staleness: int, num_searchers: int
) -> None:
    """Five responses are made to a prompt, and four are drawn."""
    searcher = {"num_searchers": num_searchers, "num_responses": 5}
    run = start(staleness_config(tmp_path, "run", staleness, searcher=searcher, trainer={"num_groups": 3})).run
    assert ages(run) == [{str(min(staleness, made)): 12} for made in range(8)]
    drawn = [row for step in drawn_rows(run) for group in step for row in group]
    assert len(set(drawn)) == len(drawn) == 8 * 12
    # Every group that was made is trained on, once, and no others are made.
    frame = rollouts(run)
    per_group = frame.assign(drawn=frame.index.isin(drawn)).groupby(["source", "serial"])["drawn"].sum()
    assert per_group.tolist() == [4] * 24
    per_version = frame.groupby("version")["serial"].count() // 5
    assert per_version.to_dict() == {0: 3 * (staleness + 1), **dict.fromkeys(range(1, 8 - staleness), 3)}
    assert [record["buffer/evicted"] for record in train_records(run)] == [0] * 8
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    fates = {name: summary[f"responses_{name}"] for name in FATES if summary[f"responses_{name}"]}
    assert fates == {"trained": 24 * 4, "evicted": 24}, "one of five is not drawn"
    assert sum(fates.values()) == summary["responses_generated"]


def test_staleness_0_is_synchronous_mode_bit_for_bit(tmp_path: Path) -> None:
    """Which draws from the buffer: all of them recent, since others may repeat a prompt."""
    settings = {"run": INLINE, "searcher": {"num_responses": 5}, "evaluation": {"period": 0}}
    exact = start(small_config(tmp_path, "exact", **settings, trainer={"staleness": 0, "num_steps": 6})).run
    trainer = {"synchronous": True, "sync_period": 1, "num_steps": 6}
    synchronous = start(
        small_config(tmp_path, "synchronous", **settings, trainer=trainer, buffer={"recent_fraction": 1.0})
    ).run
    assert same_weights(weights(exact, 6), weights(synchronous, 6))
    assert drawn_rows(exact) == drawn_rows(synchronous)
    of_the_buffer = {name for record in train_records(synchronous) for name in record if name.startswith("buffer/")}
    for one, other in zip(train_records(exact), train_records(synchronous), strict=True):
        assert {k: v for k, v in one.items() if k not in of_the_buffer} == {
            k: v for k, v in other.items() if k not in of_the_buffer
        }
    assert timeless_records(exact, "search") == timeless_records(synchronous, "search")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run; none of the tests changes it."""
    searcher = {"num_searchers": 2, "num_responses": 5}
    config = staleness_config(
        tmp_path_factory.mktemp("staleness"), "whole", 2, searcher=searcher, checkpoint={"period": 1, "keep_last": 10}
    )
    return start(config).run


def copy_of(run: Path, root: Path, *, up_to: int) -> Path:
    """As after kill -9: checkpoints later than this are gone, but log and metrics run on to the end."""
    copy = root / run.name
    shutil.copytree(run, copy)
    config = copy / "config.toml"
    config.write_text(config.read_text("utf-8").replace(str(run.parent), str(root)), "utf-8")
    for later in range(up_to + 1, 9):
        shutil.rmtree(copy / "checkpoints" / f"step-{later:06d}")
    return copy


@pytest.mark.parametrize("step", [2, 5])
def test_a_resumed_run_repeats_the_uninterrupted_one(whole: Path, tmp_path: Path, step: int) -> None:
    """While the first version's groups still wait, and later."""
    run = copy_of(whole, tmp_path, up_to=step)
    resume(run)
    assert same_weights(weights(run, 8), weights(whole, 8))
    assert train_records(run) == train_records(whole)
    assert drawn_rows(run) == drawn_rows(whole)
    assert_nothing_doubled(rollouts(run), num_responses=5)


def test_a_replay_repeats_it_too(whole: Path) -> None:
    again, finished = replay_run(whole, {"run": {"name": "again"}})
    assert finished
    assert same_weights(weights(again, 8), weights(whole, 8))
    assert ages(again) == ages(whole)


def test_a_finished_run_can_be_made_longer_and_ages_begin_anew(whole: Path, tmp_path: Path) -> None:
    """The last weights were not explored, and are not known any more."""
    run = copy_of(whole, tmp_path, up_to=8)
    resume(run, {"trainer": {"num_steps": 12}})
    assert ages(run)[8:] == [{"0": 8}, {"1": 8}, {"2": 8}, {"2": 8}]
    drawn = [row for step in drawn_rows(run) for group in step for row in group]
    assert len(set(drawn)) == len(drawn) == 12 * 8


def test_exact_ages_can_be_given_up_and_taken_up_at_a_resume(whole: Path, tmp_path: Path) -> None:
    run = copy_of(whole, tmp_path, up_to=3)
    plain = {"trainer": {"staleness": None, "num_steps": 5, "sync_period": 1}, "buffer": {"recent_fraction": 1.0}}
    resume(run, plain)
    assert [record["step"] for record in train_records(run)] == [1, 2, 3, 4, 5]
    assert train_records(run)[-1]["buffer/size"] > 0
    resume(run, {"trainer": {"num_steps": 8, "staleness": 2}})
    assert ages(run)[5:] == [{"0": 8}, {"1": 8}, {"2": 8}]


def test_processes_keep_the_age_also_when_the_run_is_resumed(tmp_path: Path) -> None:
    """It is stopped at step 4; the resumed run counts from there, in its new epoch."""
    config = staleness_config(
        tmp_path, "run", 2, run={"launcher": "local"}, searcher={"num_searchers": 2}, trainer={"num_steps": 4}
    )
    run = tmp_path / "run"
    made = tba_here("train", *arguments(config))
    assert made.returncode == 0, made.stdout + made.stderr
    assert ages(run) == [{"0": 8}, {"1": 8}, {"2": 8}, {"2": 8}]
    more = tba_here("train", "--resume", str(run), "--trainer.num-steps", "9")
    assert more.returncode == 0, more.stdout + more.stderr
    assert Epochs.read(run).newest == 1
    assert ages(run)[4:] == [{"0": 8}, {"1": 8}, {"2": 8}, {"2": 8}, {"2": 8}]
    drawn = [row for step in drawn_rows(run) for group in step for row in group]
    assert len(set(drawn)) == len(drawn) == 9 * 8
    assert_nothing_doubled(rollouts(run), num_responses=4)


def test_early_syncs_bring_younger_data_from_the_start(tmp_path: Path) -> None:
    settings = {"run": INLINE, "evaluation": {"period": 0}, "buffer": {"recent_fraction": 1.0}}
    trainer = {"num_steps": 8, "sync_period": 4}
    plain = start(small_config(tmp_path, "plain", **settings, trainer=trainer)).run
    early = start(small_config(tmp_path, "early", **settings, trainer={**trainer, "early_syncs": True})).run
    versions = [sorted(rollouts(run)["version"].unique().tolist()) for run in (plain, early)]
    assert versions == [[0, 4], [0, 1, 2, 4]]
    groups = rollouts(early).groupby("version")["serial"].nunique().to_dict()
    assert groups == {0: 2, 1: 2, 2: 4, 4: 8}, "of each version, what the steps up to the next sync draw"
    oldest = [max(record["staleness/max"] for record in train_records(run)) for run in (plain, early)]
    assert oldest[1] < oldest[0]
