"""A whole preference run, inline, on tiny models: the reward model trains, the gold model judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import records

from tba.api import start
from tba.cli import main
from tba.config.settings import parse_config
from tba.launch.evaluation import evaluate_model
from tba.runs.run_config import config_for_model
from tba.testing import save_tiny_classifier, save_tiny_model


def save_reward_model(directory: Path, seed: int) -> str:
    return str(save_tiny_classifier(directory, decoder=True, seed=seed, max_position_embeddings=256))


def settings(folder: Path) -> dict[str, Any]:
    posts = folder / "posts.jsonl"
    rows = [{"post": f"the story of {i}.", "title": f"story {i}", "summary": f"it is {i}."} for i in range(10)]
    posts.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"post": " "}]))
    return {
        "run": {
            "root": str(folder / "runs"),
            "name": "mine",
            "launcher": "inline",
            "display": "none",
            "num_threads": 1,
        },
        "model": {"path": str(save_tiny_model(folder / "policy"))},
        "task": {"kind": "tldr", "data": str(posts), "num_eval": 4, "max_prompt_tokens": 100},
        "reward": {"model": save_reward_model(folder / "rm", 1), "no_eos_score": -1.0},
        "engine": {"max_new_tokens": 6, "temperature": 0.7},
        "searcher": {"num_responses": 4, "prompts_per_batch": 2},
        "trainer": {"num_steps": 4, "num_groups": 2, "group_size": 4, "learning_rate": 1e-3},
        "evaluation": {"period": 4, "num_prompts": 4, "gold_model": save_reward_model(folder / "gold", 2)},
        "metrics": {"tensorboard": False},
    }


def test_a_tldr_run_trains_is_judged_and_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = parse_config({}, settings(tmp_path))
    run = start(config).run
    first, last = records(run, "eval")
    assert first["step"] == 0
    assert first["kl"] == pytest.approx(0, abs=1e-3), "the policy is still the reference, but for rounding"
    assert last["kl"] != pytest.approx(0, abs=1e-2)
    for record in (first, last):
        assert 0 <= record["win_rate"] <= 1
        assert record["num_compared"] == 4
        assert record["reference/mean_length"] == len(" it is 6.")
        assert record["paper_perplexity"] > 1
    [event] = [r for r in records(run, "event") if r["event"] == "prompts_skipped"]
    assert (event["count"], event["why"]) == (1, "empty, or too long to be cut")
    assert all(r["rewards/reward_model/truncated"] == 0 for r in records(run, "search"))

    checkpoint = str(run / "checkpoints" / "step-000004" / "model")
    again = evaluate_model(config_for_model(checkpoint, {}), None)
    assert again["win_rate"] == last["win_rate"], "greedy, by the same judge"
    assert again["kl"] != pytest.approx(0, abs=1e-2), "to the model the run started from, not to itself"

    capsys.readouterr()
    assert main(["compare", str(run)]) == 0
    assert "Pareto front" in capsys.readouterr().out
