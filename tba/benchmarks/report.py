"""What a benchmark returns, how repetitions are taken, and how results are shown."""

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
    bar: str
    """What the ratio should be, as text; empty where nothing is promised."""
    met: bool | None = None
    bound: str = ""
    """What bounds it now, and how far that is from the machine's limit."""


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


def at_least(bar: float, name: str, ours: str, other: str, ratio: float, spread: str, bound: str = "") -> Row:
    return Row(name, ours, other, ratio, spread, f"at least {bar:g}", ratio >= bar, bound)


def at_most(bar: float, name: str, ours: str, other: str, ratio: float, spread: str = "", bound: str = "") -> Row:
    return Row(name, ours, other, ratio, spread, f"at most {bar:g}", ratio <= bar, bound)


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| what | ours | compared with | ratio | spread | bar | what bounds it now |", "|" + " --- |" * 7]
    for row in rows:
        mark = {True: " ✓", False: " ✗", None: ""}[row.met]
        cells = (row.name, row.ours, row.other, f"**{row.ratio:.3g}**", row.spread, row.bar + mark, row.bound)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
