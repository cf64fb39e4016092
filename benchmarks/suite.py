"""All benchmarks by name: run them, keep their rows, and write the page that is made of them."""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.report import Row, markdown
from tba.types import TbaError

PARTS = {
    "generation": "Generation",
    "vllm": "Generation against vLLM",
    "training": "Training step",
    "precision": "Precision",
    "memory": "Memory of a training step",
    "whole_run": "Whole run",
    "race": "Time to accuracy against TRL",
    "publication": "Publication",
    "growth": "Growth",
    "draws": "Draws",
    "scoring": "Scoring",
    "stale_length": "Weights on stale negatives by length",
}
"""Modules here with `run(full)`, and their headings."""

COMMAND = "python -m benchmarks"
"""How these are run, at the root of the repository."""

NOTES = "notes.md"
"""Beside the results: what people say about them, a section for each benchmark."""

HEAD = """\
# Benchmarks

<!-- Written by `python -m benchmarks page`. The tables come from the results in benchmarks/*.json, which programs
wrote; the commentary comes from benchmarks/notes.md. Edit neither this page nor the results. -->

After this page you know how fast `tba` generates and trains, compared with transformers, vLLM and TRL, and how to
measure it yourself.

Every row is a ratio: speed relative to a baseline measured in the same run on the same machine. Both sides run in turn,
so that a noisy minute hits both. The spread is the range over repetitions. ✓ and ✗ say whether the target was met in
that run. Tables hold what a program measured, and nothing else; commentary was written by hand and is marked as such.
A Searcher, in these tables, is a rollout worker.

`make bench` measures the quick form of each benchmark and writes results and page to `build/benchmarks`.
`make bench-full` measures the full form, with longer runs, more repetitions and the peers, and writes this page. It
needs TRL (`pip install -e '.[trl]'`), vLLM (`make vllm`, then `TBA_VLLM_PYTHON`) and SmolLM2 (`tba fetch smollm2`, then
`TBA_SMOLLM2`). `python -m benchmarks NAME --full --results docs/benchmarks --page docs/benchmarks.md` measures one
again.
"""


def run_parts(names: Sequence[str], *, full: bool, results: Path) -> None:
    """Run these, show their rows and keep them under `results`. Quick results never replace full ones."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise TbaError(f"no benchmark {unknown[0]!r}: one of {', '.join(PARTS)}, or profile")
    # All the quick ones are those that need neither minutes nor another environment.
    chosen = names or [name for name in PARTS if full or name not in ("vllm", "race")]
    for name in chosen:
        path = results / f"{name}.json"
        if not full and _is_full(path):
            raise TbaError(f"{path} holds results of --full, which a quick run would replace: choose other --results")
    console = Console(highlight=False)
    for name in chosen:
        console.print(f"[bold]{PARTS[name]}[/bold] …")
        begun = time.time()
        made: Iterable[Row] = importlib.import_module(f"benchmarks.{name}").run(full)
        rows: list[Row] = []
        for row in made:
            mark = {True: "✓", False: "✗", None: " "}[row.met]
            target = f" ({row.target})" if row.target else ""
            found = f"{row.ours} | {row.other} | {row.ratio:.3g}{target} {row.spread}"
            console.print(f"  {mark} {row.name}: {found}")
            rows.append(row)
            # After each: a part that takes an hour keeps what it has if it ends early.
            _keep(results / f"{name}.json", name, rows, full, time.time() - begun)


def write_page(results: Path, page: Path) -> None:
    """The page of what was kept under `results`, with the notes that lie beside it."""
    notes = _read_notes(results / NOTES)
    texts = [HEAD]
    for name, title in PARTS.items():
        path = results / f"{name}.json"
        if not path.exists():
            continue
        kept: dict[str, Any] = json.loads(path.read_text("utf-8"))
        rows = [Row(**row) for row in kept["rows"]]
        made = f"`{command(name, kept['full'])}`, {kept['seconds'] / 60:.1f} min, on {kept['machine']}."
        texts.append(f"## {title}\n\n{made}\n\n{markdown(rows)}")
        if name in notes:
            texts.append(f"**Commentary, written by hand:**\n\n{notes[name]}\n")
    if len(texts) == 1:
        raise TbaError(f"no results under {results}: run {COMMAND} first")
    page.write_text("\n".join(texts), "utf-8")


def command(name: str, full: bool) -> str:
    """What measures this one again."""
    return f"{COMMAND} {name}" + (" --full" if full else "")


def _read_notes(path: Path) -> dict[str, str]:
    """By benchmark: what `## NAME` says about it. What stands before the first section is about the file itself."""
    if not path.exists():
        return {}
    _, *sections = re.split(r"^## ", path.read_text("utf-8"), flags=re.MULTILINE)
    notes = {name.strip(): text.strip() for name, _, text in (section.partition("\n") for section in sections)}
    unknown = [name for name in notes if name not in PARTS]
    if unknown:
        raise TbaError(f"{path} has a section {unknown[0]!r}: name it after a benchmark, one of {', '.join(PARTS)}")
    return notes


def _is_full(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text("utf-8"))["full"])
    except FileNotFoundError:
        return False
    except (ValueError, TypeError, KeyError):
        raise TbaError(f"{path} is not a file of results: move it away, or choose other --results") from None


def _keep(path: Path, name: str, rows: Sequence[Row], full: bool, seconds: float) -> None:
    from benchmarks.machine import description

    path.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "command": command(name, full),
        "full": full,
        "machine": description(),
        "seconds": seconds,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
