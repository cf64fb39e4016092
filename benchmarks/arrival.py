"""When a run of the embedded model came to a held-out accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.runs import Finished, accuracy_of, embedded_run
from tba.learn.checkpoint import list_checkpoints


@dataclass(frozen=True)
class Arrival:
    """When a run came to the target. One of ours that does not has infinite time; one of TRL's keeps the time at which
    it was ended, which is in its favour."""

    seconds: float
    reached: bool = True

    def __str__(self) -> str:
        if math.isinf(self.seconds):
            return "not reached"
        return f"{self.seconds:.1f}" if self.reached else f">{self.seconds:.1f}"


NEVER = Arrival(math.inf, reached=False)


def arrival_of(sections: Mapping[str, Mapping[str, Any]], target: float, seed: int, every: int) -> Arrival:
    """Of a run with these sections over the embedded default, whose weights after every so many steps are evaluated.

    Time is counted from when the first answers are asked for, so nobody pays for the start; nor for evaluations, which
    are made afterwards, from checkpoints.
    """
    settings = {name: dict(values) for name, values in sections.items()}
    settings["run"] = {**settings.get("run", {}), "seed": seed}
    settings["checkpoint"] = {"period": every, "keep_last": 10_000}
    with embedded_run(**settings) as (run, finished):
        for checkpoint in list_checkpoints(run):
            if accuracy_of(checkpoint.model, **sections) >= target:
                return Arrival(_seconds_to(finished, checkpoint.step))
    return NEVER


def _seconds_to(finished: Finished, step: int) -> float:
    first, made = (next(r for r in finished.train if r["step"] >= number) for number in (1, step))
    begun = first["time"] - first["step_time"] - first["seconds/fill"]
    return float(made["time"] - begun)
