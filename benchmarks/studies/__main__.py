"""Writes docs/asynchrony.md from the records of the studies: `python -m benchmarks.studies`.

A study is a sweep (`tba sweep benchmarks/studies/NAME.toml`). Its record, `sweep.jsonl`, is kept as
`docs/asynchrony/NAME.jsonl`, with thresholds that were the default of the time written out; what people say of it is in
`docs/asynchrony/notes.md`, a section for each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from tba.sweep.arms import shown

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "asynchrony"
PAGE = ROOT / "docs" / "asynchrony.md"
STUDIES = ("remedies", "synchronous", "stability")
"""In the order of the page."""

Record = Mapping[str, Any]


def main() -> None:
    PAGE.write_text(page(), "utf-8")


def page() -> str:
    # The page lies one folder above the notes, and so do the links.
    notes = sections((RECORDS / "notes.md").read_text("utf-8").replace("](../", "]("))
    parts = [
        "<!-- Written by `python -m benchmarks.studies` from docs/asynchrony. Do not edit. -->\n",
        notes[""],
    ]
    for name in STUDIES:
        path = RECORDS / f"{name}.jsonl"
        if path.exists():
            records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            parts.append(f"## {name.capitalize()}\n\n{notes.get(name, '')}\n{table(records)}")
            parts.append(f"```\ntba sweep benchmarks/studies/{name}.toml\n```\n")
    parts.append(notes["not measured yet"])
    return "\n".join(parts)


def sections(text: str) -> dict[str, str]:
    """The text above the first heading of the second level, under the empty name, and each section by its heading; the
    last keeps its heading, as one that the page ends with."""
    head, *others = text.split("\n## ")
    found = {"": head.strip() + "\n"}
    for other in others:
        name, _, body = other.partition("\n")
        found[name.lower()] = body.strip() + "\n"
    found["not measured yet"] = f"## Not measured yet\n\n{found['not measured yet']}"
    return found


def table(records: Sequence[Record]) -> str:
    """A row for each arm, the best first: accuracy after each number of steps, mean over seeds, and its extremes."""
    arms: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        arms[" ".join(f"{name}={shown(value)}" for name, value in record["settings"].items())].append(record)
    steps = [step for step, _, _ in records[0]["curve"]]
    head = ["arm", *(f"step {step}" for step in steps), "last, each seed", "largest drop"]
    rows = sorted(arms.items(), key=lambda arm: -mean([r["value"] for r in arm[1]]))
    lines = [head, ["---"] * len(head), *(row(name, runs) for name, runs in rows)]
    seeds = ", ".join(str(seed) for seed in sorted({r["seed"] for r in records}))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\nSeeds {seeds}.\n"


def row(name: str, runs: Sequence[Record]) -> list[str]:
    curves = [[value for _, _, value in run["curve"]] for run in runs]
    means = [f"{mean(values):.3f}" for values in zip(*curves, strict=True)]
    last = ", ".join(f"{curve[-1]:.3f}" for curve in curves)
    return [f"`{name}`", *means, last, f"{max(map(largest_drop, curves)):.3f}"]


def largest_drop(curve: Sequence[float]) -> float:
    """How far a curve falls below the best that it has reached before."""
    return max(best - value for best, value in zip(accumulate(curve, max), curve, strict=True))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
