"""What grows with a run: time a step, memory, checkpoints. And what every run pays: its start."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

from benchmarks.report import Row, at_most
from benchmarks.runs import Finished, embedded_run

LONG_RUN = {"num_steps": 10_000, "num_groups": 1, "learning_rate": 1e-5, "schedule": "constant"}
CAPACITY = 20_000
"""Trajectories the buffer holds: reached early in the long run, so that nothing should grow after that."""


def run(full: bool) -> list[Row]:
    rows = [_start(), _help()]
    return [*rows, *_long_run()] if full else rows


def _start() -> Row:
    with embedded_run(trainer={"num_steps": 2}) as (_, finished):
        spent = finished.train[0]["time"]
    return at_most(8.0, "start to the first step of the demo, seconds", f"{spent:.1f} s", "", spent, "one run")


def _help() -> Row:
    times = []
    for _ in range(7):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-m", "tba.cli", "--help"], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - begun)
    median = statistics.median(times)
    return at_most(0.4, "tba --help, seconds", f"{median:.2f} s", "", median, f"{min(times):.2f} to {max(times):.2f}")


def _long_run() -> list[Row]:
    with embedded_run(
        trainer=LONG_RUN,
        buffer={"capacity": CAPACITY},
        checkpoint={"period": 500},
        metrics={"tensorboard": False},
    ) as (_, finished):
        return _rows_of(finished)


def _rows_of(finished: Finished) -> list[Row]:
    train = finished.train
    tenth = len(train) // 10
    filled = next(i for i, r in enumerate(train) if r["buffer/size"] >= 0.99 * CAPACITY)
    # Responses change as the policy learns: per token trained, a step's own work is the same early and late.
    early, late = train[filled : filled + tenth], train[-tenth:]
    per_token = [sum(r["step_time"] for r in part) / sum(r["tokens"] for r in part) for part in (early, late)]
    per_step = [statistics.median(r["step_time"] for r in part) for part in (early, late)]
    memory = [statistics.median(r["memory_mb"] for r in part) for part in (early, late)]
    saves = _checkpoint_seconds(train)
    first, last = statistics.median(saves[1:4]), statistics.median(saves[-3:])
    shape = f"steps {filled:,}-{filled + tenth:,} and the last {tenth:,} of {len(train):,}"
    step, token, held = (late / early for early, late in (per_step, per_token, memory))
    checkpoints = f"the second to fourth, {first:.3f}"
    return [
        at_most(1.05, f"median time of a step, {shape}", _micro(per_step[1]), _micro(per_step[0]), step),
        at_most(1.05, "time per trained token, the same", _micro(per_token[1]), _micro(per_token[0]), token),
        at_most(1.05, "the Trainer's resident memory, the same", f"{memory[1]:,.0f} MB", f"{memory[0]:,.0f} MB", held),
        at_most(1.3, "seconds a checkpoint, the last three", f"{last:.3f}", checkpoints, last / first),
    ]


def _micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} µs"


def _checkpoint_seconds(train: list[dict[str, Any]]) -> list[float]:
    spent = [float(r.get("seconds/checkpoint", 0.0)) for r in train]
    return [after - before for before, after in pairwise(spent) if after > before]
