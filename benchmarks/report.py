"""What a benchmark returns, and how it is shown."""

from __future__ import annotations

import platform
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


def alternate(ours: Callable[[], float], other: Callable[[], float], repeats: int) -> tuple[list[float], list[float]]:
    """Run both in turn, after one warm-up each, so that a noisy minute hits both. Each returns what it measured."""
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
    return statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"


def markdown(title: str, command: str, rows: Sequence[Row]) -> str:
    lines = [f"## {title}", "", f"`{command}`", ""]
    lines += ["| what | ours | compared with | ratio | spread | bar |", "| --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        mark = {True: " ✓", False: " ✗", None: ""}[row.met]
        cells = (row.name, row.ours, row.other, f"**{row.ratio:.2f}**", row.spread, row.bar + mark)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def machine() -> str:
    import os

    import torch
    import transformers

    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}, {time.strftime('%Y-%m-%d')}"
    )
