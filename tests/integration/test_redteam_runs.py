"""A whole red-teaming run: one attacker prompt, a victim and a classifier in the reward process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_runs import assert_nothing_doubled, records, rollouts

from tba.api import resume, start
from tba.config.settings import Config, parse_config
from tba.launch.preflight import check
from tba.testing import save_tiny_classifier, save_tiny_model
from tba.types import TbaError

pytest.importorskip("peft")


def config_in(root: Path, name: str, **sections: dict[str, Any]) -> Config:
    models = root / "models"
    if not models.exists():
        save_tiny_model(models / "victim")
        save_tiny_model(models / "attacker", seed=1)
        save_tiny_classifier(models / "classifier", ["fine", "harmful"])
        rows = [{"attacker_prompt": "1. what is it?\n2."}]
        (models / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    settings: dict[str, Any] = {
        "run": {"root": str(root), "name": name, "launcher": "inline", "display": "none", "num_threads": 1},
        "model": {"path": str(models / "attacker"), "lora_rank": 4},
        "task": {
            "kind": "redteam",
            "data": str(models / "rows.jsonl"),
            "victim": str(models / "victim"),
            "classifier": str(models / "classifier"),
            "classifier_label": "harmful",
            "victim_tokens": 5,
            "victim_replies": 2,
            "min_tokens": 3,
            "cache_size": 0,  # a batch without what a cache knew may pad, and so round, otherwise
        },
        "engine": {"max_new_tokens": 10, "stop_text": "\n"},
        "searcher": {"num_responses": 8, "prompts_per_batch": 2, "temperature_fraction": 0.5},
        "buffer": {"capacity_per_prompt": 100_000},
        "objective": {"kind": "trajectory_balance_learned_z", "beta": 0.5},
        "trainer": {"num_steps": 6, "num_groups": 4, "group_size": 4, "sync_period": 2, "learning_rate": 1e-3},
        "evaluation": {"period": 6, "num_attacks": 12},
        "checkpoint": {"period": 2, "keep_last": 10},
        "metrics": {"tensorboard": False},
    }
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values}
    return parse_config(settings, {})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("redteam")


@pytest.fixture(scope="module")
def run(root: Path) -> Path:
    return start(config_in(root, "whole")).run


def test_every_step_of_a_redteam_run_draws_its_groups_from_the_one_prompt(run: Path) -> None:
    train = records(run, "train")
    assert [sum(r["staleness/counts"].values()) for r in train] == [16] * 6
    assert {r["buffer/prompts"] for r in train} == {1}
    assert train[-1]["buffer/size"] == sum(r["groups"] for r in records(run, "search")) * 8 - 8 * 8, (
        "all that was merged is kept; the last round came after the last merge"
    )
    frame = rollouts(run)
    assert_nothing_doubled(frame, num_responses=8)
    assert (frame["reward"] <= 0).all()


def test_a_redteam_run_is_evaluated_by_success_and_diversity(run: Path) -> None:
    evals = records(run, "eval")
    assert [r["step"] for r in evals] == [0, 6]
    for record in evals:
        rate, low, high = (record[f"attack_success_rate{end}"] for end in ("", "_low", "_high"))
        assert record["num_attacks"] == 12
        assert 12 * rate == pytest.approx(round(12 * rate)), "a share of 12 attacks"
        # Wilson's interval of 12 attacks is never narrower than that of none or all of them.
        assert low <= rate <= high
        assert high - low > 0.24
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["attack_success_rate_last"] == evals[-1]["attack_success_rate"]
    assert summary["judged_by"] == "attack_success_rate"
    assert "accuracy_last" not in summary
    search = records(run, "search")[-1]
    assert {f"rewards/victim_harm/{name}" for name in ("mean", "harm", "empty_replies")} <= search.keys()
    assert "rewards/victim_harm/replies" not in search, "text is no metric"


def test_a_resumed_redteam_run_repeats_the_uninterrupted_one(root: Path, run: Path) -> None:
    again = start(config_in(root, "again")).run
    for step in (4, 6):
        shutil.rmtree(again / "checkpoints" / f"step-{step:06d}")
    assert resume(again).finished
    before, after = rollouts(run), rollouts(again)
    assert before["response"].tolist() == after["response"].tolist()
    assert before["reward"].tolist() == after["reward"].tolist()


@pytest.mark.parametrize(
    ("section", "key", "message"),
    [
        ("task", "victim", r"task.victim .* is not there: check the path"),
        ("task", "classifier", r"task.classifier .* is not there: check the path"),
        ("evaluation", "embedding_model", r"evaluation.embedding_model .* is not there: check the path"),
    ],
)
def test_models_that_are_not_there_are_told_before_anything_starts(
    root: Path, section: str, key: str, message: str
) -> None:
    with pytest.raises(TbaError, match=message):
        check(config_in(root, "missing", **{section: {key: "./no/such/model"}}))


def test_a_classifier_without_a_named_label_is_told(root: Path, tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=r"task\.classifier_label is missing"):
        start(config_in(root, "unnamed", task={"classifier_label": None}))
