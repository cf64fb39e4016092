"""Time to the same held-out accuracy: asynchronous runs against our own synchronous mode.

Where every core can serve either role, responses are equally long and rewards are free, a synchronous run leaves little
idle. The other contests each add one thing that a synchronous run waits for. Both modes have the same model, problems,
cores and number of responses to a prompt, and each the settings that suit it best; targets were fixed by runs of the
synchronous mode, on other seeds than these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arrival import Arrival, arrival_of
from benchmarks.report import Row, at_least, ratio_of

Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Contest:
    name: str
    wanted: float
    """How many times as fast the asynchronous run should be."""
    target: float
    """Held-out accuracy, on 1,024 problems, that both have to reach."""
    shared: Sections
    synchronous: Sections
    asynchronous: Sections
    evaluate_every: int = 8
    """Steps between the weights that are evaluated."""


def sections_of(contest: Contest, mode: Sections) -> dict[str, dict[str, Any]]:
    """The settings of one mode: a section has what both share and what is the mode's own."""
    names = dict.fromkeys([*contest.shared, *mode])
    return {name: {**contest.shared.get(name, {}), **mode.get(name, {})} for name in names}


def _task(difficulty: str, max_new_tokens: int) -> dict[str, dict[str, Any]]:
    return {"task": {"difficulty": difficulty, "num_eval": 1024}, "engine": {"max_new_tokens": max_new_tokens}}


_SYNCHRONOUS: Sections = {
    "trainer": {"synchronous": True, "sync_period": 1, "learning_rate": 4e-4, "num_steps": 160},
    "buffer": {"recent_fraction": 1.0},
    "searcher": {"num_searchers": 2},
}
_ASYNCHRONOUS: Sections = {
    "trainer": {"sync_period": 2, "learning_rate": 4e-4, "num_steps": 320},
    "buffer": {"recent_fraction": 0.9},
}

CARRY = Contest("chains that carry, equal conditions", 1.1, 0.77, _task("carry", 64), _SYNCHRONOUS, _ASYNCHRONOUS)
CONTESTS = (CARRY,)


def run(full: bool) -> Iterator[Row]:
    """The quick form has one seed instead of five."""
    for contest in CONTESTS:
        yield _row(contest, 5 if full else 1)


def _row(contest: Contest, repeats: int) -> Row:
    ours: list[Arrival] = []
    other: list[Arrival] = []
    for seed in range(repeats):
        for arrivals, mode in ((other, contest.synchronous), (ours, contest.asynchronous)):
            found = arrival_of(sections_of(contest, mode), contest.target, seed, contest.evaluate_every)
            arrivals.append(found)
        Console(highlight=False).print(f"    {contest.name}, seed {seed}: {ours[-1]} s, synchronous {other[-1]} s")
    mine, theirs = ([arrival.seconds for arrival in arrivals] for arrivals in (ours, other))
    ratio, spread = ratio_of(theirs, mine)
    return at_least(
        contest.wanted,
        f"time to held-out accuracy {contest.target}, {contest.name}",
        f"asynchronous, {np.median(mine):.1f} s",
        f"synchronous, {np.median(theirs):.1f} s",
        ratio,
        spread,
        f"seconds by seed: {', '.join(map(str, ours))} against {', '.join(map(str, other))}",
    )
