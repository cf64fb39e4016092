"""Responses of real runs: what the log says of them, and that looking changes nothing."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from small_runs import (
    INLINE,
    SMALL,
    arguments,
    records,
    rollouts,
    same_weights,
    small_config,
    started,
    tba,
    timeless_records,
    weights,
)
from test_processes import until

from tba.api import resume, start
from tba.config.settings import Config

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
REWARDS = """
def digits(texts, answer, log_extra, **columns):
    log_extra("looked_for", list(answer))
    return [float(sum(c.isdigit() for c in text)) for text in texts]


def brief(texts, **columns):
    return [-len(text) / 10 for text in texts]
"""


def chats(tmp_path: Path, **sections: Any) -> Config:
    """A run on chats of one's own, judged by two functions."""
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "rewards.py").write_text(REWARDS)
    rows = [{"prompt": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1)} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    functions = [f"{tmp_path / 'rewards.py'}:{name}" for name in ("digits", "brief")]
    own = {
        "run": {**SMALL["run"], **INLINE, "root": str(tmp_path), "name": "chats"},
        "task": {"kind": "custom", "data": str(tmp_path / "rows.jsonl"), "num_eval": 2},
        "model": {"chat_template": str(tmp_path / "template.jinja")},
        "reward": {"functions": functions, "weights": [1.0, 0.5]},
        "engine": {"max_new_tokens": 8},
    }
    return Config.embedded(**{**SMALL, **own, **sections})


@pytest.mark.parametrize("where", ["searcher", "learner"])
def test_rows_carry_the_data_and_the_names_of_rewards(where: str, tmp_path: Path) -> None:
    run = start(chats(tmp_path, reference={"where": where})).run
    frame = rollouts(run)
    assert [list(names) for names in frame["reward_names"]] == [["digits", "brief"]] * len(frame)
    for row in frame.itertuples():
        parts = dict(zip(row.reward_names, row.reward_parts, strict=True))
        assert row.reward == parts["digits"] + 0.5 * parts["brief"]
        ((message,), columns) = json.loads(row.messages), json.loads(row.columns)
        assert message["content"] == f"{int(columns['answer']) - 1}+1="
        assert json.loads(row.notes) == {"looked_for": columns["answer"]}
        assert row.version <= row.merged_step
    assert not list(run.glob("*.arrow"))
    shown = tba("samples", str(run), "--best", "--num", "2")
    assert shown.returncode == 0, shown.stderr
    assert "prompt    user: " in shown.stdout
    assert "(digits " in shown.stdout


def test_what_is_shown_changes_nothing_and_is_shown_again_after_a_resume(tmp_path: Path) -> None:
    """A run that was cut short and resumed has the samples of a whole one, and the weights of one that shows none."""
    whole = start(small_config(tmp_path, "whole", run=INLINE)).run
    silent = start(small_config(tmp_path, "silent", run=INLINE, metrics={"samples": 0})).run
    short = start(small_config(tmp_path, "short", run=INLINE, trainer={"num_steps": 4})).run
    resume(short, {"trainer": {"num_steps": 8}})
    assert same_weights(weights(whole, 8), weights(silent, 8))
    assert timeless_records(whole, "train") == timeless_records(silent, "train")
    assert records(silent, "samples") == []
    assert len(timeless_records(whole, "samples")) == 4, "one at each merge of so short a run"
    assert timeless_records(short, "samples") == timeless_records(whole, "samples")


def test_a_run_that_goes_on_and_one_that_was_killed_are_looked_at(tmp_path: Path) -> None:
    config = small_config(tmp_path, "run", trainer={"num_steps": 100_000}, checkpoint={"period": 2, "keep_last": 2})
    run = tmp_path / "run"
    with started("train", *arguments(config)) as process:
        until(lambda: len(records(run, "train")) > 6, process)
        going_on = tba("samples", str(run), "--json", "--num", "8")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert going_on.returncode == 0, going_on.stderr
    found = [json.loads(line) for line in going_on.stdout.splitlines()]
    assert len(found) == 8
    assert all({"answer", "num_terms"} <= sample["columns"].keys() for sample in found)
    assert all(sample["staleness_when_merged"] >= 0 for sample in found)
    killed = tba("samples", str(run), "--json", "--best", "--num", "99999")
    assert killed.returncode == 0, killed.stderr
    assert any(json.loads(line)["times_trained"] for line in killed.stdout.splitlines())
