"""All benchmarks by name: run them, keep their rows, and write the page that is made of them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tba.benchmarks.report import Row, markdown
from tba.types import TbaError

PARTS = {
    "generation": "Generation",
    "vllm": "Generation against vLLM",
    "training": "Training step",
    "whole_run": "Whole run",
    "race": "Time to accuracy against TRL",
    "publication": "Publication",
    "growth": "Growth",
    "draws": "Draws",
    "scoring": "Scoring",
}
"""Modules here with `run(full)`, and their headings."""

HEAD = """\
# Benchmarks

<!-- Written by `tba bench page --results docs/benchmarks --page docs/benchmarks.md` from what was measured. -->

Ratios within one run on one machine; both sides of a ratio run in turn, so that a noisy minute hits both. The spread is
the range over repetitions. ✓ and ✗ say whether the bar was met in that very run. `make bench` runs the quick form of
each, `tba bench NAME --full` the full one, with longer runs, more repetitions and the peers
(`pip install 'tba[trl]'`; `make vllm` and `TBA_VLLM_PYTHON`; `tba fetch smollm2` and `TBA_SMOLLM2`).
"""


def run_parts(names: Sequence[str], *, full: bool, results: Path) -> None:
    """Run these, show their rows and keep them under `results`."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise TbaError(f"no benchmark {unknown[0]!r}: one of {', '.join(PARTS)}, or profile")
    console = Console(highlight=False)
    # All the quick ones are those that need neither minutes nor another environment.
    for name in names or [name for name in PARTS if full or name not in ("vllm", "race")]:
        console.print(f"[bold]{PARTS[name]}[/bold] …")
        begun = time.time()
        made: Iterable[Row] = importlib.import_module(f"tba.benchmarks.{name}").run(full)
        rows: list[Row] = []
        for row in made:
            mark = {True: "✓", False: "✗", None: " "}[row.met]
            console.print(f"  {mark} {row.name}: {row.ours} | {row.other} | {row.ratio:.3g} ({row.bar}) {row.spread}")
            rows.append(row)
            # After each: a part that takes an hour keeps what it has if it ends early.
            _keep(results / f"{name}.json", name, rows, full, time.time() - begun)


def write_page(results: Path, page: Path) -> None:
    """docs/benchmarks.md from what was kept."""
    texts = [HEAD]
    for name, title in PARTS.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        rows = [Row(**row) for row in kept["rows"]]
        made = f"`{kept['command']}`, {kept['seconds'] / 60:.1f} min, on {kept['machine']}."
        texts.append(f"## {title}\n\n{made}\n\n{markdown(rows)}")
    if len(texts) == 1:
        raise TbaError(f"no results under {results}: run tba bench first")
    page.write_text("\n".join(texts), "utf-8")


def _keep(path: Path, name: str, rows: Sequence[Row], full: bool, seconds: float) -> None:
    from tba.benchmarks.machine import description

    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": f"tba bench {name}" + (" --full" if full else ""),
        "machine": description(),
        "seconds": seconds,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
