"""What was won at which KL: the evaluations of runs as points, and those of them that no other beats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Point:
    """One evaluation of one run: what was won, and at which KL to the reference."""

    run: str
    step: int
    kl: float
    win_rate: float
    win_rate_se: float | None
    length: float | None
    reference_length: float | None


def points_of(name: str, evals: Sequence[Mapping[str, Any]]) -> list[Point]:
    """The evaluations that have both a win rate and a KL."""
    return [
        Point(
            run=name,
            step=e["step"],
            kl=e["kl"],
            win_rate=e["win_rate"],
            win_rate_se=e.get("win_rate_se"),
            length=e.get("completions/mean_length"),
            reference_length=e.get("reference/mean_length"),
        )
        for e in evals
        if e.get("win_rate") is not None and e.get("kl") is not None
    ]


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats: none has at least their win rate at no more KL, and more or less of one. By KL."""
    front: list[Point] = []
    best = -1.0
    for point in sorted(points, key=lambda p: (p.kl, -p.win_rate)):
        if point.win_rate > best:
            front.append(point)
            best = point.win_rate
    return front


def front_table(points: Sequence[Point]) -> Table:
    front = set(pareto_front(points))
    table = Table(title="win rate against KL; * on the Pareto front", title_justify="left")
    for column in ("run", "step", "KL", "win rate", "length", "reference length", ""):
        table.add_column(column, justify="left" if column in ("run", "") else "right")
    for p in points:
        error = "" if p.win_rate_se is None else f" ± {p.win_rate_se:.3f}"
        mark = "*" if p in front else ""
        lengths = ("–" if value is None else f"{value:.0f}" for value in (p.length, p.reference_length))
        table.add_row(Text(p.run), str(p.step), f"{p.kl:.3f}", f"{p.win_rate:.3f}{error}", *lengths, mark)
    return table
