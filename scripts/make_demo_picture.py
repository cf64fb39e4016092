"""Draws docs/demo.svg, the README's picture, from a finished run of `make demo`: what the terminal showed.

python scripts/make_demo_picture.py runs/arithmetic-…
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from tba.runs.display import title, told
from tba.runs.end_table import end_lines, end_table
from tba.runs.panel import panel
from tba.runs.progress import RunProgress
from tba.runs.run_config import read_run_config

TARGET = Path(__file__).parent.parent / "docs" / "demo.svg"
WIDTH = 110


def main(run: Path) -> None:
    config = read_run_config(run)
    headline = config.task.headline
    progress = RunProgress(run, config.trainer.num_steps, headline, from_start=True)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(f"[bold]$ make demo[/]\n[bold]tba[/] · {run} · {title(config)}")
    for record in progress.update():
        line = told(record, headline)
        if line:
            console.print(line)
    console.print(panel(progress))
    console.print(end_table(json.loads((run / "summary.json").read_text("utf-8")), headline))
    for line in end_lines(run, headline):
        console.print(line)
    TARGET.write_text(without_fonts(console.export_svg(title="make demo")), "utf-8")


def without_fonts(svg: str) -> str:
    """Pictures load nothing from the network: whoever looks has a fixed-width font."""
    return re.sub(r"\n\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
