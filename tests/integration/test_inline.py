"""Runs of the inline launcher: deterministic, so they can be compared to the bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from rewards_for_tests import spec
from small_runs import (
    INLINE,
    assert_accounts_add_up,
    assert_nothing_doubled,
    records,
    rollouts,
    same_weights,
    small_config,
    timeless_records,
    train_records,
    weights,
)
from transformers import AutoModelForCausalLM

from tba.api import resume, start
from tba.learn.trainer import Trainer
from tba.search.searcher import Searcher


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run with two Searchers."""
    config = small_config(tmp_path_factory.mktemp("inline"), "whole", run=INLINE, searcher={"num_searchers": 2})
    return start(config).run


def test_a_run_leaves_what_it_should(whole: Path) -> None:
    assert {"config.toml", "metrics.jsonl", "draws.jsonl", "summary.json", "rollouts", "checkpoints"} <= {
        p.name for p in whole.iterdir()
    }
    kinds = Counter(r["kind"] for r in records(whole))
    assert kinds["train"] == 8
    assert [r["step"] for r in records(whole, "eval")] == [0, 4, 8]
    assert_nothing_doubled(rollouts(whole), num_responses=4)


def ledger(run: Path) -> dict[str, Any]:
    return {name: value for name, value in assert_accounts_add_up(run).items() if name.startswith("responses_")}


def test_every_response_and_every_second_is_accounted_for(whole: Path) -> None:
    """Four rounds of four groups of four. All is handed up and merged before the run ends; nobody overlaps."""
    summary = assert_accounts_add_up(whole)
    assert summary["responses_generated"] == 4 * 4 * 4
    assert summary["responses_num_draws"] == 8 * 2 * 4
    assert summary["responses_in_flight"] == summary["responses_lost"] == 0
    assert summary["overlap_fraction"] is None
    assert summary["processes/searcher-1/wait_seconds"] > 0, "for its turn"


def test_the_model_of_a_run_loads_with_plain_transformers(whole: Path) -> None:
    path = whole / "checkpoints" / "step-000008" / "model"
    assert "tba" not in (path / "config.json").read_text("utf-8")
    model = AutoModelForCausalLM.from_pretrained(path)
    assert torch.isfinite(model(torch.tensor([[4, 5, 6]])).logits).all()


@pytest.mark.parametrize("step", [4, 6])
def test_a_resumed_run_repeats_the_uninterrupted_one_bit_for_bit(whole: Path, tmp_path: Path, step: int) -> None:
    """As after kill -9: checkpoints later than `step` are gone, but log and metrics run on to the end."""
    config = small_config(tmp_path, "again", run=INLINE, searcher={"num_searchers": 2}, checkpoint={"period": 2})
    run = start(config).run
    for later in range(step + 2, 10, 2):
        shutil.rmtree(run / "checkpoints" / f"step-{later:06d}")
    before = rollouts(run)
    resume(run)
    assert same_weights(weights(run, 8), weights(whole, 8))
    for kind in ("train", "search"):
        assert timeless_records(run, kind) == timeless_records(whole, kind)
    after = rollouts(run)
    assert_nothing_doubled(after, num_responses=4)
    assert before["response"].tolist() == after["response"].tolist()
    assert ledger(run) == ledger(whole)


def test_another_seed_is_another_run(whole: Path, tmp_path: Path) -> None:
    run = start(small_config(tmp_path, "other", run={**INLINE, "seed": 1}, searcher={"num_searchers": 2})).run
    assert not same_weights(weights(run, 8), weights(whole, 8))


def test_search_records_do_not_depend_on_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between records, one second passes or none: a round of four batches is one record."""
    runs = []
    for seconds in (0.0, 1e9):
        monkeypatch.setattr("tba.search.reports.REPORT_SECONDS", seconds)
        config = small_config(
            tmp_path, f"after-{seconds}", run=INLINE, searcher={"prompts_per_batch": 1}, trainer={"num_steps": 4}
        )
        runs.append(start(config))
    one, other = (timeless_records(result.run, "search") for result in runs)
    assert one == other
    assert [record["groups"] for record in one] == [4, 4]
    for name in ("reward_first", "reward_last", "kl_last", "tokens_generated"):
        assert runs[0].summary[name] == runs[1].summary[name]


def test_kl_is_0_while_the_policy_is_the_reference_and_not_afterwards(whole: Path) -> None:
    """But for rounding. By the usual bound, a sum of 128 products in float32 has a relative error below 128 × 2⁻²⁴; the
    model is 128 wide and its logits are below 16. Either pass may be off by that much for every token."""
    search = records(whole, "search")
    first, last = ([r for r in search if r["version"] == version] for version in (0, 6))
    assert {r["source"] for r in first} == {r["source"] for r in last} == {"searcher-0", "searcher-1"}
    for record in [*first, *last]:
        rounding = record["completions/mean_length"] * 2 * 128 * 2**-24 * 16
        assert (abs(record["kl"]) <= rounding) == (record["version"] == 0), record


def test_staleness_of_recent_data_is_at_most_2k_minus_1(tmp_path: Path) -> None:
    k = 3
    config = small_config(
        tmp_path,
        "stale",
        run=INLINE,
        trainer={"num_steps": 12, "sync_period": k, "initial_groups": 6},
        buffer={"recent_fraction": 1.0},
    )
    counts: Counter[int] = Counter()
    for record in train_records(start(config).run)[k:]:  # the first period draws from the initial fill
        counts.update({int(age): n for age, n in record["staleness/counts"].items()})
    assert set(counts) == set(range(k, 2 * k))


def test_staleness_0_equals_synchronous_bit_for_bit(tmp_path: Path) -> None:
    trainer = {"sync_period": 1, "num_steps": 6}
    limited = start(small_config(tmp_path, "limited", run=INLINE, trainer={**trainer, "max_staleness": 0})).run
    synchronous = start(small_config(tmp_path, "synchronous", run=INLINE, trainer={**trainer, "synchronous": True})).run
    assert same_weights(weights(limited, 6), weights(synchronous, 6))
    assert train_records(limited) == train_records(synchronous)
    ages = {age for r in train_records(synchronous) for age in r["staleness/counts"]}
    assert ages == {"0"}


def test_a_staleness_limit_is_kept(tmp_path: Path) -> None:
    run = start(small_config(tmp_path, "limit", run=INLINE, trainer={"max_staleness": 2, "num_steps": 10})).run
    assert max(r["staleness/max"] for r in train_records(run)) <= 2
    assert ledger(run)["responses_buffered"] <= 2 * 2 * 4, "what is older than a period has been drawn or has left"


def test_groups_with_equal_rewards_can_be_skipped(tmp_path: Path) -> None:
    """All but one of a batch that has no others; what is left is trained on, with the reference's view of it."""
    config = small_config(tmp_path, "skip", run=INLINE, searcher={"skip_equal_rewards": True, "prompts_per_batch": 4})
    run = start(config).run
    search = records(run, "search")
    handed_up = rollouts(run)
    spread = handed_up.groupby(["source", "serial"])["reward"].nunique()
    assert sum(r["groups_skipped"] for r in search) > 0
    assert ledger(run)["responses_skipped"] == 4 * sum(r["groups_skipped"] for r in search)
    assert (spread > 1).mean() > 0.5
    assert sum(r["groups"] - r["groups_skipped"] for r in search) == len(spread)
    assert all(len(row.reference_token_logprobs) == len(row.tokens) for row in handed_up.itertuples())


def test_a_run_whose_rewards_are_all_equal_still_moves_on(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        "equal",
        run=INLINE,
        searcher={"skip_equal_rewards": True},
        reward={"functions": spec("ones")},
        trainer={"num_steps": 2},
    )
    assert [r["step"] for r in records(start(config).run, "train")] == [1, 2]


def stop_at_step_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C once that step was recorded."""
    record = Trainer.record

    def interrupted_at_step_3(trainer: Trainer, *arguments: Any) -> None:
        record(trainer, *arguments)
        if trainer.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "record", interrupted_at_step_3)


def test_a_run_stopped_by_ctrl_c_repeats_the_uninterrupted_one_too(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop waits for the next sync, so that the resumed run has nothing to guess."""
    stop_at_step_3(monkeypatch)
    result = start(small_config(tmp_path, "stopped", run=INLINE, searcher={"num_searchers": 2}))
    assert not result.finished
    assert records(result.run, "train")[-1]["step"] == 4
    assert resume(result.run).finished
    assert same_weights(weights(result.run, 8), weights(whole, 8))
    assert train_records(result.run) == train_records(whole)
    assert_nothing_doubled(rollouts(result.run), num_responses=4)


def test_so_does_one_that_then_lacks_fresh_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At step 3 nothing merged is at most two steps old; what the Searchers have made meanwhile is, and is used."""
    settings = {"run": INLINE, "trainer": {"max_staleness": 2, "num_steps": 6}, "evaluation": {"period": 0}}
    whole = start(small_config(tmp_path, "whole", **settings)).run
    with monkeypatch.context() as stopping:
        stop_at_step_3(stopping)
        run = start(small_config(tmp_path, "stopped", **settings)).run
    assert records(run, "train")[-1]["step"] == 4
    assert resume(run).finished
    assert same_weights(weights(run, 6), weights(whole, 6))
    assert train_records(run) == train_records(whole)


@pytest.mark.parametrize("trainer", [{}, {"synchronous": True, "sync_period": 1}])
def test_a_round_that_ctrl_c_interrupts_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any]
) -> None:
    """The Searchers end the round they are at. It is not merged, and the resumed run makes it again."""
    settings = {"run": INLINE, "trainer": {"num_steps": 6, **trainer}, "evaluation": {"period": 0}}
    whole = start(small_config(tmp_path, "whole", **settings)).run
    run_round = Searcher.run_round

    def interrupted_after_step_2(searcher: Searcher) -> None:
        if searcher.hand_up.serial >= 8:
            os.kill(os.getpid(), signal.SIGINT)
        run_round(searcher)

    with monkeypatch.context() as stopping:
        stopping.setattr(Searcher, "run_round", interrupted_after_step_2)
        result = start(small_config(tmp_path, "stopped", **settings))
    assert not result.finished
    assert ledger(result.run)["responses_in_flight"] > 0, "the round that was not merged"
    assert 0 < records(result.run, "train")[-1]["step"] < 6
    assert resume(result.run).finished
    assert same_weights(weights(result.run, 6), weights(whole, 6))
    assert train_records(result.run) == train_records(whole)
    assert timeless_records(result.run, "search") == timeless_records(whole, "search")
    assert_nothing_doubled(rollouts(result.run), num_responses=4)
    assert ledger(result.run) == ledger(whole)
