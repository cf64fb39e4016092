"""Whole runs small enough for tests: the embedded model, a handful of short steps."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file

from tba.cli import main
from tba.config.settings import Config
from tba.runs.ledger import FATES
from tba.runs.metrics import read_metrics

SMALL: dict[str, dict[str, Any]] = {
    "run": {"display": "none", "num_threads": 1},
    "task": {"num_train": 24, "num_eval": 8},
    "engine": {"max_new_tokens": 32},
    "searcher": {"num_responses": 4, "prompts_per_batch": 2},
    "trainer": {"num_steps": 8, "num_groups": 2, "group_size": 4, "sync_period": 2, "learning_rate": 1e-3},
    "evaluation": {"period": 4, "num_prompts": 8, "prompts_per_batch": 8},
    "checkpoint": {"period": 4, "keep_last": 10},
    "metrics": {"tensorboard": False},
}

INLINE = {"launcher": "inline"}
_OF_THE_MACHINE = ("time", "step_time", "tokens_per_second", "memory_mb", "process_seconds")


def small_config(root: Path, name: str, **sections: Mapping[str, Any]) -> Config:
    merged = {section: dict(values) for section, values in SMALL.items()}
    merged["run"] |= {"root": str(root), "name": name}
    for section, values in sections.items():
        merged.setdefault(section, {}).update(values)
    return Config.embedded(**merged)


def arguments(config: Config, *, without: str = "") -> list[str]:
    """The settings as a command line, but for one section."""
    flags = []
    for section, values in config.model_dump(mode="json", exclude={without}).items():
        for key, value in values.items():
            if value is not None and not isinstance(value, list):
                flags += [f"--{section}.{key.replace('_', '-')}", str(value).lower() if value is True else str(value)]
    return flags


def tba(*words: str, cwd: Path | None = None, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return run_module("tba.cli", *words, cwd=cwd, timeout=timeout)


def tba_here(*words: str) -> subprocess.CompletedProcess[str]:
    """`tba …` as a call of this process, for commands that compute nothing in it: its children are forked from a server
    that has imported all they need, and that one test after the other uses."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = main(words)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


def run_module(
    module: str, *words: str, cwd: Path | None = None, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE …`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *words], capture_output=True, text=True, cwd=cwd, timeout=timeout
    )


@contextmanager
def started(*words: str, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """`tba …` in a process group of its own, ended with the test whatever happens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tba.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def records(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    # What follows the last line's end is being written just now.
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [r for r in found if kind is None or r["kind"] == kind]


def timeless_records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Records as readers see them after a resume, without what depends on the machine."""
    return [
        {k: v for k, v in record.items() if k not in _OF_THE_MACHINE and not k.startswith("seconds/")}
        for record in read_metrics(run)
        if record["kind"] == kind
    ]


def train_records(run: Path) -> list[dict[str, Any]]:
    return timeless_records(run, "train")


def weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "model" / "model.safetensors")


def same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rollouts(run: Path) -> pd.DataFrame:
    return pd.read_parquet(run / "rollouts")


def assert_accounts_add_up(run: Path) -> dict[str, Any]:
    """Every response has one fate, and every second of each process was work, waiting or publishing; the summary."""
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["responses_generated"] == sum(summary[f"responses_{fate}"] for fate in FATES)
    merged = sum(summary[f"responses_{fate}"] for fate in ("trained", "buffered", "evicted", "too_stale"))
    assert merged == len(rollouts(run))
    walls = [name for name in summary if name.endswith(("_wall_seconds", "/wall_seconds"))]
    assert {"trainer_wall_seconds", "searchers_wall_seconds"} <= set(walls)
    # Not of each that was started: one may be killed before it has told anything.
    assert any(name.startswith("processes/searcher-0") for name in walls)
    for wall in walls:
        parts = [summary[wall.replace("wall", kind)] for kind in ("busy", "wait", "publish")]
        assert abs(summary[wall] - sum(parts)) < 0.02, f"{wall}: more than rounding"
    return summary


def assert_nothing_doubled(frame: pd.DataFrame, num_responses: int) -> None:
    """Every group is in the log once, and the serials of a source have no gap: none was lost on the way."""
    per_group = frame.groupby(["source", "serial"])
    assert (per_group["merge"].nunique() == 1).all()
    assert (per_group.size() <= num_responses).all()
    for source, serials in frame.groupby("source")["serial"]:
        assert sorted(serials.unique()) == list(range(1, serials.max() + 1)), source
