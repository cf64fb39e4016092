"""Writes docs/asynchrony.md from the records of the studies: `python -m benchmarks.studies`.

A study is a sweep (`tba sweep benchmarks/studies/NAME.toml`). Its record, `sweep.jsonl`, is kept as
`docs/asynchrony/NAME.jsonl`, with thresholds that were the default of the time written out; what people say of it is in
`docs/asynchrony/notes.md`, a section for each.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from benchmarks.studies import RECORDS, ROOT, diagnosis, races
from tba.sweep.arms import shown

PAGE = ROOT / "docs" / "asynchrony.md"
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
    for name, table in STUDIES.items():
        path = RECORDS / f"{name}.jsonl"
        if path.exists():
            records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
            title = name.replace("-", ", ").capitalize()
            parts.append(f"## {title}\n\n{notes.get(name, '')}\n{table(records)}")
            command = COMMANDS.get(name, f"tba sweep benchmarks/studies/{name}.toml")
            parts.append(f"<!-- needs: a clone and hours -->\n```sh\n{command}\n```\n")
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


def curves(records: Sequence[Record]) -> str:
    """A row for each arm, the best first: accuracy after each number of steps, mean over seeds, and its extremes."""
    arms = _by(records, lambda settings: _named(settings))
    steps = [step for step, _, _ in records[0]["curve"]]
    head = ["arm", *(f"step {step}" for step in steps), "last, each seed", "largest drop"]
    rows = sorted(arms.items(), key=lambda arm: -mean([r["value"] for r in arm[1]]))
    return _markdown(head, [row(name, runs) for name, runs in rows], records)


def grid_over(setting: str) -> Callable[[Sequence[Record]], str]:
    """A table with a column for each value of this setting, and in a cell the accuracy at the end, mean over seeds.

    The best of a row is bold. A cell of fewer seeds than others, because a sweep stopped its arm, says so.
    """

    def table(records: Sequence[Record]) -> str:
        values = sorted({record["settings"][setting] for record in records})
        num_seeds = len({record["seed"] for record in records})
        rows = []
        for name, runs in _by(records, lambda settings: _named(settings, without=setting)).items():
            cells = _by(runs, lambda settings: settings[setting])
            best = max(cells, key=lambda value: mean([run["value"] for run in cells[value]]))
            rows.append([f"`{name}`", *(_cell(cells.get(v, []), num_seeds, is_best=v == best) for v in values)])
        return _markdown(["arm", *(f"{setting} {shown(value)}" for value in values)], rows, records)

    return table


def _cell(runs: Sequence[Record], num_seeds: int, *, is_best: bool) -> str:
    if not runs:
        return ""
    text = f"{mean([run['value'] for run in runs]):.3f}"
    text = f"**{text}**" if is_best else text
    return text if len(runs) == num_seeds else f"{text} ({len(runs)})"


def _by(records: Sequence[Record], key: Callable[[Mapping[str, Any]], Any]) -> dict[Any, list[Record]]:
    found: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        found[key(record["settings"])].append(record)
    return found


def _named(settings: Mapping[str, Any], without: str = "") -> str:
    return " ".join(f"{name}={shown(value)}" for name, value in settings.items() if name != without)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], records: Sequence[Record]) -> str:
    seeds = ", ".join(str(seed) for seed in sorted({r["seed"] for r in records}))
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\nSeeds {seeds}.\n"


def row(name: str, runs: Sequence[Record]) -> list[str]:
    found = [[value for _, _, value in run["curve"]] for run in runs]
    means = [f"{mean(values):.3f}" for values in zip(*found, strict=True)]
    last = ", ".join(f"{curve[-1]:.3f}" for curve in found)
    return [f"`{name}`", *means, last, f"{max(map(largest_drop, found)):.3f}"]


def largest_drop(curve: Sequence[float]) -> float:
    """How far a curve falls below the best that it has reached before."""
    return max(best - value for best, value in zip(accumulate(curve, max), curve, strict=True))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


STUDIES: Mapping[str, Callable[[Sequence[Record]], str]] = {
    "diagnosis": diagnosis.table,
    "remedies": curves,
    "synchronous": curves,
    "stability": curves,
    "tuning-fresh": grid_over("trainer.learning_rate"),
    "tuning-stale": grid_over("trainer.learning_rate"),
    "medium": curves,
    "races": races.table,
}
"""Each with its table, in the order of the page."""

COMMANDS = {
    "diagnosis": "python -m benchmarks.studies.diagnosis",
    "races": "python -m benchmarks.studies.races",
}
"""How studies are made that are no sweeps."""


if __name__ == "__main__":
    main()
