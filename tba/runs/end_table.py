"""The table at the end of a run: what it has reached, where its time went, and what to do with its model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.learn.checkpoint import list_checkpoints
from tba.runs.best import best_model, read_best
from tba.runs.printable import printable
from tba.runs.summary_rows import summary_rows
from tba.tasks import Headline


def end_table(summary: dict[str, Any], run: Path, headline: Headline) -> Table:
    """The summary of a run that has ended, and what to do with its model."""
    table = Table(title="summary", title_justify="left", show_header=False, min_width=60)
    table.add_column(style="bold")
    table.add_column(overflow="fold")  # a path that is cut off cannot be copied
    for number, row in enumerate(row for row in summary_rows(headline) if row.at_end):
        text = row.text(summary)
        if text is not None:
            table.add_row(Text(row.label), _with_result_in_green(text) if number == 0 else Text(text))
    name = printable(str(run))
    table.add_row("folder of the run", Text(name))
    checkpoints = list_checkpoints(run)
    if checkpoints:
        table.add_row("trained model", Text(printable(str(checkpoints[-1].model))))
        best = read_best(run)
        if best is not None:
            model = "the starting model" if best.is_starting_model else printable(str(best_model(run)))
            text = f"{model} ({best.metric.replace('_', ' ')} {best.value:.3f}, step {best.step})"
            table.add_row("best model", Text(text))
        table.add_row("evaluate it", Text(f"tba eval {shlex.quote(name)} {headline.eval_flags}".rstrip()))
    table.add_row("look at curves", Text(f"tensorboard --logdir {shlex.quote(name)}"))
    return table


def _with_result_in_green(change: str) -> Text:
    """Of `0.488 → 0.980 ± 0.009` the number that was reached."""
    before, arrow, after = change.partition(" → ")
    value, plus_minus, error = after.partition(" ± ")
    return Text.assemble(before + arrow, (value, "bold green"), plus_minus + error)
