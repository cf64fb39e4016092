"""The commands of docs/quickstart.md: with a real model where TBA_SMOLLM2 names one, and else with a tiny one."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import string
from pathlib import Path

import pytest
from small_runs import records, tba
from transformers import AutoTokenizer

from tba.testing import save_tiny_model

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text("utf-8")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
TINY = ["--trainer.learning-rate", "3e-3", "--trainer.num-steps", "40", "--run.launcher", "inline"]
"""A random model learns to be brief within seconds, at a rate that would ruin a trained one."""


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [text for kind, text in found if kind == language]


def tiny_chat_model(folder: Path) -> Path:
    model = save_tiny_model(folder, alphabet=string.printable)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    return model


def test_the_held_out_reward_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_rows, rewards = blocks("python")
    Path("make_rows.py").write_text(make_rows, "utf-8")
    Path("rewards.py").write_text(rewards, "utf-8")
    runpy.run_path("make_rows.py")
    fetch, train, evaluate = (shlex.split(block.replace("\\\n", " ")) for block in blocks("sh"))
    assert fetch == ["tba", "fetch", "smollm2"]
    named = train[train.index("--model") + 1]
    assert named == "models/SmolLM2-135M-Instruct"
    real = os.environ.get("TBA_SMOLLM2")
    model = Path(real) if real else tiny_chat_model(tmp_path / "tiny")
    words = [str(model) if word == named else word for word in train[1:]]
    done = tba(*words, *([] if real else TINY), "--run.num-threads", "1", timeout=1800)
    assert done.returncode == 0, done.stderr
    first, *_, last = [record["reward"] for record in records(Path("runs/capitals"), "eval")]
    assert last > first + 0.05
    assert "held-out reward" in done.stdout
    assert tba(*evaluate[1:], "--run.num-threads", "1").returncode == 0
    assert "accuracy" not in done.stdout, "a reward of one's own has no right and wrong"
