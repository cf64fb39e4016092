"""Whole runs of the embedded default: asynchronous against synchronous, same objective, same number of steps."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.report import Row, ratio_of
from tba.api import start
from tba.config import Config

NUM_STEPS = 40


def run(repeats: int = 1) -> list[Row]:
    fast, slow, summaries = [], [], []
    for _ in range(repeats):
        synchronous = min(_seconds_a_step(_synchronous(launcher, searchers)) for launcher, searchers in _BASELINES)
        summary = _run({})
        summaries.append(summary)
        fast.append(summary["training_seconds"] / NUM_STEPS)
        slow.append(synchronous)
    ratio, spread = ratio_of(slow, fast)
    waits = max(s["trainer_wait_fraction"] for s in summaries)
    publishing = max(s["publish_fraction"] for s in summaries)
    return [
        Row(
            f"{NUM_STEPS} steps of the embedded default, asynchronous",
            f"{fast[0]:.3f} s a step",
            f"synchronous (the best of {len(_BASELINES)} set-ups, all cores in both phases), {slow[0]:.3f} s a step",
            ratio,
            spread,
            "at least 1.5",
            ratio >= 1.5,
        ),
        Row("Trainer's waiting, share of time", f"{waits:.4f}", "", waits, "", "at most 0.05", waits <= 0.05),
        Row("publication of weights", f"{publishing:.4f}", "", publishing, "", "at most 0.02", publishing <= 0.02),
    ]


# A strong baseline: two Searcher processes of one thread each, one of two threads, and all in one process.
_BASELINES = (("local", 2), ("local", 1), ("inline", 1))


def _synchronous(launcher: str, num_searchers: int) -> dict[str, Any]:
    return {
        "run": {"launcher": launcher},
        "trainer": {"synchronous": True, "sync_period": 1},
        "searcher": {"num_searchers": num_searchers},
    }


def _seconds_a_step(settings: dict[str, Any]) -> float:
    return float(_run(settings)["training_seconds"]) / NUM_STEPS


def _run(settings: dict[str, Any]) -> dict[str, Any]:
    """A run's summary, with the seconds from the first step to the last beside it."""
    with tempfile.TemporaryDirectory() as root:
        sections = {name: dict(values) for name, values in settings.items()}
        sections.setdefault("run", {}).update(root=root, name="bench", display="none")
        sections.setdefault("trainer", {}).update(num_steps=NUM_STEPS)
        sections["evaluation"] = {"period": 0}
        result = start(Config.embedded(**sections))
        times = [r["time"] for r in _records(result.run) if r["kind"] == "train"]
        steps = len(times) - 1
        return result.summary | {"training_seconds": (times[-1] - times[0]) / steps * NUM_STEPS}


def _records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


if __name__ == "__main__":
    for row in run():
        print(row)
