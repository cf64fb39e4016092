"""Draws docs/images/staleness.svg: timelines of a synchronous and of an asynchronous run, and how old their data are.

Times are made up: every phase takes one unit, or as long as a sync period. What follows is computed: which version of
the weights writes, which version's data a step is trained on, and their age. The picture has a background of its own,
and colours for dark pages too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

UNIT, ROW, GAP = 74, 36, 42
"""Width of a unit of time, height of a row, height between the two rows of a run."""
LEFT, HEAD, NUM_UNITS, SYNC_PERIOD = 92, 46, 11, 2
WIDTH = LEFT + NUM_UNITS * UNIT + 16
RUN = HEAD + 2 * ROW + GAP
STYLE = """
  svg { font-family: system-ui, sans-serif; font-size: 13px; }
  .card { fill: #fbfbfd; stroke: #d5d8e0; } .word { fill: #22252e; } .soft { fill: #5b6070; } .waits { fill: #e9ebf1; }
  .arrow { stroke: #5b6070; stroke-width: 1.5; } .head { fill: #5b6070; } .in { fill: #16181f; }
  .c0 { fill: #a9c7f5; } .c1 { fill: #b5e3b8; } .c2 { fill: #f9d48b; } .c3 { fill: #f3b6c9; } .c4 { fill: #cdb9f0; }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1d2029; stroke: #3a3f4d; } .word { fill: #e8eaf0; } .soft { fill: #a7adbd; }
    .waits { fill: #2b2f3b; } .arrow { stroke: #a7adbd; } .head { fill: #a7adbd; }
  }"""
LEGEND = (
    "Each colour is a version of the weights: in a Searcher's row the one that writes, in the Trainer's row the one "
    "that wrote the data."
)


@dataclass(frozen=True)
class Phase:
    """What a process does for some units of time; `colour` counts the versions of a run, None while it waits."""

    start: int
    length: int
    label: str
    colour: int | None
    note: str = ""


@dataclass(frozen=True)
class Sync:
    """Groups that go to the Trainer, and weights of a version that go to the Searcher, at one time."""

    time: int
    has_groups: bool
    version: int | None


@dataclass(frozen=True)
class Run:
    title: str
    searcher: list[Phase]
    trainer: list[Phase]
    syncs: list[Sync]


def figure() -> str:
    height = 2 * RUN + 58
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Timelines of a synchronous and an asynchronous run">',
        "<!-- Written by `make docs` from scripts/staleness_figure.py. -->",
        f"<style>{STYLE}\n</style>",
        f'<rect class="card" x="1" y="1" width="{WIDTH - 2}" height="{height - 2}" rx="8"/>',
    ]
    for place, run in enumerate((synchronous(), asynchronous())):
        parts += drawn(run, place * (RUN + 8))
    parts.append(text(16, height - 16, LEGEND, "soft"))
    return "\n".join([*parts, "</svg>", ""])


def synchronous() -> Run:
    """Writing and training take turns, and every step is trained on data of the newest weights."""
    searcher, trainer, syncs = [], [], []
    for version in range(NUM_UNITS // 2):
        start = 2 * version
        searcher += [Phase(start, 1, f"weights {version}", version), Phase(start + 1, 1, "waits", None)]
        trainer += [Phase(start, 1, "waits", None), Phase(start + 1, 1, f"step {version + 1}", version, "age 0")]
        syncs.append(Sync(start + 1, True, None))
        syncs.append(Sync(start + 2, False, version + 1))
    return Run("On-policy: they take turns", searcher, trainer, syncs)


def asynchronous() -> Run:
    """The first unit fills the buffer. What is written between two syncs is trained on between the next two."""
    searcher, trainer, syncs = [Phase(0, 1, "weights 0", 0)], [Phase(0, 1, "waits", None)], [Sync(1, True, None)]
    for period, updates in enumerate(range(0, NUM_UNITS - 1, SYNC_PERIOD)):
        searcher.append(Phase(1 + updates, SYNC_PERIOD, f"weights {updates}", period))
        written = max(0, period - 1)
        for made in range(updates, updates + SYNC_PERIOD):
            age = made - written * SYNC_PERIOD
            trainer.append(Phase(1 + made, 1, f"step {made + 1}", written, f"age {age}"))
        syncs.append(Sync(1 + updates + SYNC_PERIOD, True, updates + SYNC_PERIOD))
    return Run(f"Asynchronous, with a sync every {SYNC_PERIOD} steps: nobody waits", searcher, trainer, syncs)


def drawn(run: Run, top: int) -> Iterator[str]:
    first, second = top + HEAD, top + HEAD + ROW + GAP
    yield text(16, top + 30, run.title, "word", ' font-weight="600"')
    for y, name, phases in ((first, "Searcher", run.searcher), (second, "Trainer", run.trainer)):
        yield text(16, y + ROW // 2 + 5, name, "word")
        for phase in phases:
            yield from box(phase, y)
    told: set[str] = set()
    for sync in run.syncs:
        if sync.time < NUM_UNITS:
            yield from arrows(sync, first + ROW + 3, second - 3, told)


def box(phase: Phase, y: int) -> Iterator[str]:
    x, width = LEFT + phase.start * UNIT, phase.length * UNIT - 3
    kind, word = ("waits", "soft") if phase.colour is None else (f"c{phase.colour % 5}", "in")
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{ROW}" rx="4"/>'
    middle, line = x + width // 2, y + ROW // 2 + (-3 if phase.note else 5)
    for offset, words in ((0, phase.label), (15, phase.note)):
        if words:
            yield text(middle, line + offset, words, word, ' text-anchor="middle"')


def arrows(sync: Sync, upper: int, lower: int, told: set[str]) -> Iterator[str]:
    """Groups down and weights up, side by side. The first arrow of each kind has its name."""
    x, apart = LEFT + sync.time * UNIT - 2, 7 if sync.has_groups and sync.version is not None else 0
    if sync.has_groups:
        yield from arrow(x - apart, upper, lower - 7)
        yield from named("groups", x - apart - 7, (upper + lower) // 2 + 4, told, ' text-anchor="end"')
    if sync.version is not None:
        yield from arrow(x + apart, lower, upper + 7)
        yield from named("weights", x + apart + 7, (upper + lower) // 2 + 4, told)


def arrow(x: int, start: int, end: int) -> Iterator[str]:
    yield f'<line class="arrow" x1="{x}" y1="{start}" x2="{x}" y2="{end}"/>'
    yield f'<path class="head" d="M{x - 4} {end}h8l-4 {7 if end > start else -7}z"/>'


def named(name: str, x: int, y: int, told: set[str], more: str = "") -> Iterator[str]:
    if name not in told:
        told.add(name)
        yield text(x, y, name, "soft", more)


def text(x: int, y: int, words: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}"{more}>{words}</text>'
