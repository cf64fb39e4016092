"""A run as curves: what evaluations gave and what new responses earned, over minutes, steps or tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tba.tasks import Headline

AXES = {"minutes": "minutes", "steps": "steps", "tokens": "tokens trained on"}
"""What curves can be drawn over, and the name of the axis."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Curves:
    judged_by: str
    evaluated: Sequence[tuple[float, float, float | None]]
    """Where on the axis, what was measured, and its standard error."""
    searched: Sequence[tuple[float, float]]
    """Where on the axis, and the mean reward of new responses."""


def curves_of(records: Sequence[Record], headline: Headline, axis: str) -> Curves:
    """The weights that were evaluated are drawn where they were trained, over minutes when their number was known."""
    place = _place_on(axis, records)
    evals = sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["step"])
    name = headline.metric_of(evals[-1]) if evals else headline.metric
    return Curves(
        name,
        [(place(e), e[name], e.get(f"{name}_se")) for e in evals if e.get(name) is not None],
        [(place(r), r["reward"]) for r in records if r["kind"] == "search"],
    )


def _place_on(axis: str, records: Sequence[Record]) -> Callable[[Record], float]:
    if axis == "minutes":
        return lambda record: float(record["time"]) / 60
    if axis == "steps":
        return lambda record: float(record["step"])
    train = [r for r in records if r["kind"] == "train"]
    steps, tokens = [r["step"] for r in train], [r["num_tokens"] for r in train]

    def trained(record: Record) -> float:
        done = bisect_right(steps, record["step"])
        return float(tokens[done - 1]) if done else 0.0

    return trained
