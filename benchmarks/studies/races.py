"""Time to the same held-out accuracy, asynchronous runs against our own synchronous mode.

    python -m benchmarks.studies.races [CONTEST …]

Where every core can serve either role, responses are equally long and rewards are free, a synchronous run leaves little
idle. The other contests each add one thing that a synchronous run waits for. Both modes have the same model, problems,
cores and number of responses to a prompt, and each has the settings that suit it best. Targets come from runs of the
synchronous mode with other seeds.

Each run is kept as a line of `docs/asynchrony/races.jsonl` when it has ended, and is not made again while the contest
stays the same. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arrival import Sections, evaluated_run
from benchmarks.report import ratio_of
from benchmarks.studies import RECORDS
from tba.types import TbaError

FILE = RECORDS / "races.jsonl"
SEEDS = (0, 1, 2, 3, 4)
MODES = ("synchronous", "asynchronous")
SPENT = ("trainer_wait_fraction", "searcher_wait_fraction", "overlap_fraction", "staleness_p50", "tokens_generated")
"""Of a run's summary, to say what bounded it."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class Contest:
    title: str
    wanted: float
    """How many times as fast the asynchronous run should be."""
    target: float
    """Held-out accuracy, on 1,024 problems, that both have to reach."""
    shared: Sections
    synchronous: Sections
    asynchronous: Sections
    evaluate_every: int = 8
    """Steps between the weights that are evaluated."""

    def sections(self, mode: str) -> dict[str, dict[str, Any]]:
        """A section has what both modes share and what is the mode's own."""
        own: Sections = getattr(self, mode)
        names = dict.fromkeys([*self.shared, *own])
        return {name: {**self.shared.get(name, {}), **own.get(name, {})} for name in names}


def _task(difficulty: str, max_new_tokens: int) -> dict[str, dict[str, Any]]:
    return {"task": {"difficulty": difficulty, "num_eval": 1024}, "engine": {"max_new_tokens": max_new_tokens}}


def _synchronous(num_steps: int, **searcher: Any) -> Sections:
    trainer = {"synchronous": True, "sync_period": 1, "learning_rate": 4e-4, "num_steps": num_steps}
    return {"trainer": trainer, "buffer": {"recent_fraction": 1.0}, "searcher": searcher}


def _asynchronous(num_steps: int) -> Sections:
    trainer = {"sync_period": 2, "learning_rate": 4e-4, "num_steps": num_steps}
    return {"trainer": trainer, "buffer": {"recent_fraction": 0.9}}


CONTESTS: Mapping[str, Contest] = {
    "equal": Contest(
        "chains that carry, equal conditions",
        wanted=1.1,
        target=0.77,
        shared=_task("carry", 64),
        synchronous=_synchronous(160, num_searchers=2),
        asynchronous=_asynchronous(320),
    ),
    "lengths": Contest(
        "chains of mixed lengths",
        wanted=1.6,
        target=0.93,
        shared=_task("mixed", 64),
        synchronous=_synchronous(240, num_searchers=2),
        asynchronous=_asynchronous(480),
    ),
    "judge": Contest(
        "a reward that takes a second or more",
        wanted=2.0,
        target=0.95,
        shared={**_task("easy", 40), "reward": {"functions": ["benchmarks.slow_reward:judge"]}},
        synchronous=_synchronous(24, num_searchers=2),
        asynchronous=_asynchronous(96),
        evaluate_every=2,
    ),
    "devices": Contest(
        "one device per role",
        wanted=1.6,
        target=0.77,
        shared={**_task("carry", 64), "run": {"num_threads": 1}},
        synchronous=_synchronous(160, num_searchers=1),
        asynchronous=_asynchronous(320),
    ),
}


def main(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in CONTESTS]
    if unknown:
        raise TbaError(f"no contest {unknown[0]!r}: one of {', '.join(CONTESTS)}")
    for name in names or CONTESTS:
        for seed in SEEDS:
            for mode in MODES:
                run_once(name, mode, seed, FILE)


def run_once(name: str, mode: str, seed: int, file: Path) -> None:
    """Make the run and keep it, unless the file has it with these very settings."""
    contest = CONTESTS[name]
    kept = {"contest": name, "mode": mode, "seed": seed, "target": contest.target, "settings": contest.sections(mode)}
    if any({key: record[key] for key in kept} == kept for record in read(file)):
        return
    curve = []
    with evaluated_run(contest.sections(mode), seed, contest.evaluate_every) as (finished, points):
        for point in points:
            curve.append((point.step, round(point.seconds, 2), point.accuracy))
            if point.accuracy >= contest.target:
                break
        spent = {key: finished.summary.get(key) for key in SPENT}
    with open(file, "a", encoding="utf-8") as lines:
        lines.write(json.dumps({**kept, "curve": curve, **spent}) + "\n")
    Console(highlight=False).print(f"{name}, {mode}, seed {seed}: {curve}", soft_wrap=True)


def read(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def seconds_of(record: Record) -> float:
    """When the run came to its target; infinite if it did not."""
    return next((seconds for _, seconds, accuracy in record["curve"] if accuracy >= record["target"]), math.inf)


def table(records: Sequence[Record]) -> str:
    """A row for each contest that has pairs of runs with today's settings."""
    head = ["contest", "accuracy", *(f"{mode}, seconds" for mode in MODES), "times as fast (range)", "wanted"]
    rows = [row for name in CONTESTS if (row := _row(name, records))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def _row(name: str, records: Sequence[Record]) -> list[str]:
    contest = CONTESTS[name]
    found = {
        mode: {
            record["seed"]: seconds_of(record)
            for record in records
            if (record["contest"], record["mode"], record["target"]) == (name, mode, contest.target)
            and record["settings"] == contest.sections(mode)
        }
        for mode in MODES
    }
    pairs = [
        (found["synchronous"][seed], found["asynchronous"][seed])
        for seed in SEEDS
        if all(seed in by for by in found.values())
    ]
    if not pairs:
        return []
    slow, fast = ([pair[i] for pair in pairs] for i in (0, 1))
    ratio, spread = ratio_of(slow, fast)
    cells = (f"{np.median(times):.1f} ({', '.join(map(_time, times))})" for times in (slow, fast))
    met = "✓" if ratio >= contest.wanted and len(pairs) == len(SEEDS) else "✗"
    return [
        contest.title,
        f"{contest.target}",
        *cells,
        f"**{ratio:.2f}** ({spread})",
        f"at least {contest.wanted} {met}",
    ]


def _time(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
