"""What a benchmark returns, how repetitions are taken, and how results are shown.

A row holds what a program measured and nothing else. What people think of it is in `notes.md` beside the results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One comparison: ours against another way, within one run."""

    name: str
    ours: str
    other: str
    ratio: float
    spread: str
    target: str
    """What the ratio should be, as text; empty where nothing is promised."""
    met: bool | None = None
    measured: str = ""
    """Other numbers of the same measurement, in a few words."""


def alternate(
    ours: Callable[[], float], other: Callable[[], float], repeats: int, *, warm_up: bool = True
) -> tuple[list[float], list[float]]:
    """Run both in turn, so that a noisy minute hits both. Each returns what it measured.

    First calls do not count, unless they take minutes, beside which what they start up is nothing.
    """
    if warm_up:
        ours()
        other()
    pairs = [(ours(), other()) for _ in range(repeats)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio_of(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, str]:
    """Median of the ratios of the pairs, and their range."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} (n={len(ratios)})" if len(ratios) > 1 else "one run"
    return statistics.median(ratios), spread


def at_least(target: float, name: str, ours: str, other: str, ratio: float, spread: str, measured: str = "") -> Row:
    return Row(name, ours, other, ratio, spread, f"at least {target:g}", ratio >= target, measured)


def at_most(target: float, name: str, ours: str, other: str, ratio: float, spread: str = "", measured: str = "") -> Row:
    return Row(name, ours, other, ratio, spread, f"at most {target:g}", ratio <= target, measured)


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| what | ours | compared with | ratio | spread | target | also measured |", "|" + " --- |" * 7]
    for row in rows:
        mark = {True: " ✓", False: " ✗", None: ""}[row.met]
        cells = (row.name, row.ours, row.other, f"**{row.ratio:.3g}**", row.spread, row.target + mark, row.measured)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
