"""Time to the same held-out accuracy: ours and TRL's GRPO, from the same weights on the same problems."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np

from tba.benchmarks.peers import trl_run
from tba.benchmarks.report import Row, at_least, ratio_of
from tba.benchmarks.runs import accuracy_of, embedded_run
from tba.checkpoint import list_checkpoints
from tba.types import TbaError

RACES = {"easy": (0.95, 40, 60), "medium": (0.78, 64, 60)}
"""Held-out accuracy both have to reach, longest answer, and our number of steps, by difficulty of the task."""
OURS = {"learning_rate": 2e-4, "schedule": "constant", "sync_period": 1}
THEIRS = {"learning_rate": 4e-4, "num_prompts": 16}
"""The best found for each on these tasks among 1e-4, 2e-4, 4e-4 and 8 or 16 prompts a step."""


def run(full: bool) -> list[Row]:
    return [_against_trl(difficulty, 2 if full else 1) for difficulty in RACES]


def _against_trl(difficulty: str, repeats: int) -> Row:
    """Both from the same weights on the same problems with K = 16 and both cores, each with the settings that suit it.

    Time is counted from when the first answers are asked for, so neither pays for its start. Neither pays for
    evaluation: ours is evaluated afterwards, from its checkpoints, and TRL's clock stands still.
    """
    target = RACES[difficulty][0]
    ours, theirs = [], []
    for seed in range(repeats):
        ours.append(_seconds_to_target(difficulty, seed))
        theirs.append(_trl_seconds_to_target(difficulty, seed))
    ratio, spread = ratio_of(theirs, ours)
    return at_least(
        4.0,
        f"time to held-out accuracy {target}, embedded model, {difficulty} chains, K=16, both cores",
        f"{np.median(ours):.1f} s",
        f"TRL's GRPO, {np.median(theirs):.1f} s",
        ratio,
        spread,
        "samples needed: each is made and trained on faster, but a step uses data a few steps old",
    )


def _sections(difficulty: str) -> dict[str, dict[str, Any]]:
    return {"task": {"difficulty": difficulty}, "engine": {"max_new_tokens": RACES[difficulty][1]}}


def _seconds_to_target(difficulty: str, seed: int) -> float:
    target, _, num_steps = RACES[difficulty]
    with embedded_run(
        run={"seed": seed},
        trainer={"num_steps": num_steps, **OURS},
        checkpoint={"period": 2, "keep_last": 100},
        **_sections(difficulty),
    ) as (run, finished):
        first = finished.train[0]
        begun = first["time"] - first["step_time"] - finished.first_fill_seconds
        for checkpoint in list_checkpoints(run):
            if accuracy_of(checkpoint.model, **_sections(difficulty)) >= target:
                return float(next(r["time"] for r in finished.train if r["step"] == checkpoint.step) - begun)
    raise TbaError(f"the run did not reach {target}")


def _trl_seconds_to_target(difficulty: str, seed: int) -> float:
    target, num_tokens, _ = RACES[difficulty]
    options = {"target": target, "seed": seed, "difficulty": difficulty, "max_new_tokens": num_tokens, **THEIRS}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, "-m", trl_run.__name__, *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        reason = done.stderr.strip().splitlines()
        raise TbaError(f"TRL's run failed: {reason[-1] if reason else 'no output'}")
    result: dict[str, Any] = json.loads(lines[-1])
    if not result["reached"]:
        raise TbaError(f"TRL's run ended at accuracy {result['accuracy']} after {result['seconds']:.0f} s")
    return float(result["seconds"])
