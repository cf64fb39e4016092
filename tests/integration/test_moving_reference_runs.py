"""Runs whose reference follows the policy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rewards_for_tests import spec
from safetensors.torch import load_file
from small_runs import INLINE, records, rollouts, same_weights, small_config, timeless_records, train_records, weights

from tba.api import resume, start
from tba.launch.replay import replay_run
from tba.types import TbaError

RESET = {"where": "learner", "reset_period": 3}


def config_of(root: Path, name: str, reference: dict[str, Any], **sections: Any) -> Any:
    """As TBA′ has it: exact ages, no replay, a reference that is reset."""
    trainer = {"staleness": 1, "num_steps": 7, **sections.pop("trainer", {})}
    differing = {
        "reward": {"functions": spec("checksum")},
        "engine": {"temperature": 2.0},
    }  # rewards, so each step moves
    sections = {
        **differing,
        "run": INLINE,
        "evaluation": {"period": 0},
        "checkpoint": {"period": 2, "keep_last": 9},
        **sections,
    }
    return small_config(root, name, reference=reference, trainer=trainer, **sections)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(config_of(tmp_path_factory.mktemp("moving"), "whole", RESET)).run


def test_the_policy_is_the_reference_right_after_each_reset(whole: Path) -> None:
    """After steps 3 and 6 they are equal to the bit, so on the data of steps 4 and 7 the log-ratio is 0."""
    assert [record["log_ratio"] == 0 for record in train_records(whole)] == [True, False, False] * 2 + [True]


def test_the_log_says_that_nothing_was_read_at_the_merge(whole: Path) -> None:
    logged = rollouts(whole)["reference_token_logprobs"]
    assert all(np.isnan(values).all() for values in logged)
    assert all(record["kl"] is None for record in records(whole, "search"))


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_resumed_run_repeats_it_bit_for_bit(whole: Path, tmp_path: Path, lora_rank: int) -> None:
    if lora_rank:
        pytest.importorskip("peft")
        model = {"lora_rank": lora_rank}
        whole = start(config_of(tmp_path, "adapters", RESET, model=model)).run
    run = tmp_path / "again"
    shutil.copytree(whole, run)
    config = run / "config.toml"
    text = config.read_text("utf-8").replace(str(whole.parent), str(tmp_path)).replace(f'"{whole.name}"', '"again"')
    config.write_text(text, "utf-8")
    for step in (6, 7):
        shutil.rmtree(run / "checkpoints" / f"step-{step:06d}")
    resume(run)
    assert train_records(run) == train_records(whole)
    assert same_weights(weights(run, 7), weights(whole, 7))
    states = [load_file(r / "checkpoints" / "step-000007" / "state" / "tensors.safetensors") for r in (run, whole)]
    assert any(name.startswith("reference/") for name in states[0])
    assert same_weights(*states)


def test_a_replay_repeats_it_too(whole: Path) -> None:
    again, finished = replay_run(whole, {"run": {"name": "replayed"}})
    assert finished
    assert same_weights(weights(again, 7), weights(whole, 7))
    assert [r["loss"] for r in train_records(again)] == [r["loss"] for r in train_records(whole)]


def test_a_resume_that_would_stop_it_is_refused_in_one_line(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    with pytest.raises(TbaError, match=r"keep reference\.reset_period or reference\.ema"):
        resume(run, {"reference": {"reset_period": 0}, "trainer": {"num_steps": 9}})


def test_a_mean_of_weights_with_processes_and_replay(tmp_path: Path) -> None:
    """Data that are drawn again are read again, by the reference as it is."""
    reference = {"where": "learner", "ema": 0.8}
    result = start(
        config_of(tmp_path, "mean", reference, run={"launcher": "local"}, trainer={"staleness": None, "num_steps": 4})
    )
    assert result.finished
    made = timeless_records(result.run, "train")
    assert [np.isfinite(record["loss"]) for record in made] == [True] * 4
    assert not [r for r in records(result.run, "event") if r["event"] == "gradient_not_finite"]
    assert made[0]["log_ratio"] == 0
    assert made[-1]["log_ratio"] != 0
