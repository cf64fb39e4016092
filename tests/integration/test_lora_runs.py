"""Whole runs that train adapters and a learned log Z."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from small_runs import INLINE, records, same_weights, small_config, train_records, weights

from tba.api import resume, start
from tba.policy.policy import load_model
from tba.runs.best import read_best

pytest.importorskip("peft")

SECTIONS: dict[str, dict[str, Any]] = {
    "run": INLINE,
    "model": {"lora_rank": 4, "lora_alpha": 8.0},
    "objective": {
        "kind": "trajectory_balance_learned_z",
        "log_z_learning_rate": 1e-2,
        "reward_temperature": 2.0,
        "reward_temperature_final": 1.0,
        "reward_temperature_steps": 4,
    },
    "searcher": {"temperature_low": 0.5, "temperature_high": 2.0, "temperature_fraction": 0.5},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start(small_config(tmp_path_factory.mktemp("lora"), "whole", **SECTIONS)).run


def test_a_checkpoint_is_a_plain_model_that_has_moved(whole: Path) -> None:
    base = {name: p.detach() for name, p in load_model("arithmetic").named_parameters()}
    saved = weights(whole, 8)
    assert saved.keys() == base.keys()
    changed = {name for name in base if not torch.equal(saved[name], base[name])}
    assert changed == {name for name in base if "_proj" in name}, "linear layers, and nothing else"
    state = load_file(whole / "checkpoints" / "step-000008" / "state" / "tensors.safetensors")
    assert {name.split("/")[0] for name in state} == {
        *("adapter", "log_z", "exp_avg", "exp_avg_sq", "step", "grad_sketch"),
    }


def test_the_target_of_a_run_moves_as_scheduled(whole: Path) -> None:
    betas = [r["beta"] for r in train_records(whole)]
    weights_of_reference = [r["reference_weight"] for r in train_records(whole)]
    assert betas[0] == pytest.approx(2 * betas[-1])
    assert weights_of_reference[0] == 0.5
    assert weights_of_reference[-1] == 1.0


def test_a_resumed_run_with_adapters_repeats_the_uninterrupted_one_bit_for_bit(whole: Path, tmp_path: Path) -> None:
    run = start(small_config(tmp_path, "again", **SECTIONS)).run
    shutil.rmtree(run / "checkpoints" / "step-000008")
    resume(run)
    assert same_weights(weights(run, 8), weights(whole, 8))
    assert train_records(run) == train_records(whole)
    assert records(run, "eval")[-1]["accuracy"] == records(whole, "eval")[-1]["accuracy"]


def test_a_checkpoint_and_the_best_model_have_the_adapter_beside_the_merged_model(whole: Path) -> None:
    from peft import PeftModel

    best = read_best(whole)
    assert best is not None
    values = {record["step"]: record["accuracy"] for record in records(whole, "eval")}
    assert best.value == max(values.values()) == values[best.step]
    saved = [whole / "checkpoints/step-000008"]
    saved += [] if best.is_starting_model else [whole / f"best/step-{best.step:06d}"]
    ids = torch.arange(3, 9)[None]
    for folder in saved:
        merged = load_model(str(folder / "model"), attention="padded")
        adapted = PeftModel.from_pretrained(load_model("arithmetic", attention="padded"), folder / "adapter")
        with torch.no_grad():
            torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, rtol=0, atol=1e-4)
    if not best.is_starting_model:
        assert same_weights(load_file(saved[1] / "model/model.safetensors"), weights(whole, best.step))
