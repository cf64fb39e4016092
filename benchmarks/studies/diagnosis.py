"""What can be seen while a run collapses: `python -m benchmarks.studies.diagnosis`.

Two runs that differ in one setting, on data ten steps old. The measurements of `metrics.jsonl` are kept as they are, of
steps that were evaluated, in `docs/asynchrony/diagnosis.jsonl`; `python -m benchmarks.studies` makes a table of it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.studies import RECORDS, ROOT
from tba.api import start
from tba.config.settings import load_config
from tba.runs.metrics import read_metrics

FILE = RECORDS / "diagnosis.jsonl"
BASE = ROOT / "benchmarks" / "studies" / "easy-chains.toml"
SEED = 100
SHARED: Mapping[str, Mapping[str, Any]] = {
    "run": {"seed": SEED, "name": "diagnosis"},
    "trainer": {"learning_rate": 4e-4, "staleness": 10},
    "evaluation": {"period": 1},
}
ARMS = ("keep", "mask")
"""Values of `objective.stale_negatives`."""
COLUMNS = {
    "accuracy": "accuracy",
    "log_pi_mu/right": "log π/μ, right",
    "log_pi_mu/wrong": "log π/μ, wrong",
    "ess": "ess",
}
"""What the table shows of each arm; the record has more."""
SHOWN = (*range(1, 13), *range(16, 41, 4))
"""Steps in the table: each one while the runs part, then some."""
OF_A_STEP = ("log_pi_mu/right", "log_pi_mu/wrong", "ess", "grad_cosine", "completions/distinct", "stale/removed")
"""By the Trainer, over the groups that it drew."""


def main() -> None:
    lines = [json.dumps(record) for arm in ARMS for record in watched(arm)]
    FILE.write_text("\n".join(lines) + "\n", "utf-8")


def watched(arm: str) -> Iterator[dict[str, Any]]:
    """What was measured at each step after which the weights were evaluated."""
    with tempfile.TemporaryDirectory() as root:
        sections = {name: dict(values) for name, values in SHARED.items()}
        sections["run"]["root"] = root
        records = read_metrics(start(load_config(BASE, {**sections, "objective": {"stale_negatives": arm}})).run)
    steps = {r["step"]: r for r in records if r["kind"] == "train"}
    for evaluation in (r for r in records if r["kind"] == "eval"):
        step = evaluation["step"]
        measured = {name: steps[step].get(name) for name in OF_A_STEP} if step in steps else {}
        yield {"arm": arm, "seed": SEED, "step": step, "accuracy": evaluation["accuracy"], **measured}


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """A row for each step, with both arms side by side."""
    head = ["step", *(f"{arm}: {title}" for arm in ARMS for title in COLUMNS.values())]
    found = {(record["arm"], record["step"]): record for record in records}
    rows = [[str(step), *(_cell(found[arm, step], n) for arm in ARMS for n in COLUMNS)] for step in SHOWN]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def _cell(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return "–" if value is None else f"{value:.3f}" if name == "accuracy" else f"{value:.2f}"


if __name__ == "__main__":
    main()
