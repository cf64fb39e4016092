"""Folders of runs as they lie on a disk, made without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.runs.metrics import Metrics
from tba.runs.run_config import write_run_config
from tba.runs.summary import write_summary


def train_record(step: int, **values: Any) -> dict[str, Any]:
    tokens = {"tokens": 100, "num_tokens": 100 * step, "staleness/counts": {"0": 1}}
    return {"loss": 1.0 / step, "reward": 0.5, **tokens, "seconds/compute": step, "process_seconds": step, **values}


def search_record(reward: float, **values: Any) -> dict[str, Any]:
    counts = {"tokens": 10, "failed": 0, "groups_dropped": 0, "kl": 0.5, "source": "searcher-0", "version": 0}
    return {**counts, "reward": reward, **values}


def make_run(
    run: Path,
    *,
    steps: int = 4,
    num_steps: int = 4,
    accuracies: tuple[float, ...] = (),
    ended: bool = True,
    **settings: Any,
) -> Path:
    """A run that made some of its steps, was evaluated as it went, and ended in order or not."""
    run.mkdir(parents=True)
    sections: dict[str, Any] = {"trainer": {"num_steps": num_steps}}
    for section, values in settings.items():
        sections[section] = {**sections.get(section, {}), **values}
    write_run_config(run, Config.embedded(**sections))
    write_records(run, range(1, steps + 1))
    metrics = Metrics(run, elapsed=10.0)
    for number, accuracy in enumerate(accuracies):
        metrics.write("eval", number, {"accuracy": accuracy, "accuracy_se": 0.01, "version": number})
    metrics.write("search", steps, search_record(0.5))
    metrics.close()
    if ended:
        write_summary(run)
    return run


def write_records(run: Path, steps: range) -> None:
    metrics = Metrics(run)
    for step in steps:
        metrics.write("train", step, train_record(step))
    metrics.close()


def write_event(run: Path, step: int, event: str) -> None:
    metrics = Metrics(run)
    metrics.write("event", step, {"event": event})
    metrics.close()


def make_checkpoint(run: Path, step: int) -> Path:
    """With a model of which only the configuration is there; the folder of the model."""
    model = run / "checkpoints" / f"step-{step:06d}" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return model
