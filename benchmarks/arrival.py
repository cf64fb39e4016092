"""When a run of the embedded model came to a held-out accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.runs import Finished, accuracy_of, embedded_run
from tba.learn.checkpoint import list_checkpoints

Sections = Mapping[str, Mapping[str, Any]]


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


@dataclass(frozen=True)
class Point:
    """Weights of a run, when they were made, and how good they are."""

    step: int
    seconds: float
    """Since the first answers were asked for, so that nobody pays for the start; nor for evaluations, which are made
    afterwards, from checkpoints."""
    accuracy: float


def arrival_of(sections: Sections, target: float, seed: int, every: int) -> Arrival:
    """Of a run with these sections over the embedded default, whose weights after every so many steps are evaluated."""
    with evaluated_run(sections, seed, every) as (_, points):
        return next((Arrival(point.seconds) for point in points if point.accuracy >= target), NEVER)


@contextmanager
def evaluated_run(sections: Sections, seed: int, every: int) -> Iterator[tuple[Finished, Iterator[Point]]]:
    """A run that has ended, and its points one by one: each is evaluated when it is asked for."""
    settings = {name: dict(values) for name, values in sections.items()}
    settings["run"] = {**settings.get("run", {}), "seed": seed}
    settings["checkpoint"] = {"period": every, "keep_last": 10_000}
    with embedded_run(**settings) as (run, finished):
        yield (
            finished,
            (
                Point(
                    checkpoint.step, _seconds_to(finished, checkpoint.step), accuracy_of(checkpoint.model, **sections)
                )
                for checkpoint in list_checkpoints(run)
                if checkpoint.step
            ),
        )


def _seconds_to(finished: Finished, step: int) -> float:
    first, made = (next(r for r in finished.train if r["step"] >= number) for number in (1, step))
    begun = first["time"] - first["step_time"] - first["seconds/fill"]
    return float(made["time"] - begun)
