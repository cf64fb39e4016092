"""The table at the end of a run: what it has reached, where its time went, and what to do with its model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.learn.checkpoint import list_checkpoints
from tba.runs.best import best_model, read_best
from tba.runs.summary_rows import summary_rows
from tba.samples.text import printable
from tba.tasks import Headline


def end_table(summary: dict[str, Any], headline: Headline) -> Table:
    """The summary of a run that has ended."""
    table = Table(title="summary", title_justify="left", show_header=False, min_width=60)
    table.add_column(style="bold")
    table.add_column()
    for number, row in enumerate(row for row in summary_rows(headline) if row.at_end):
        text = row.text(summary)
        if text is not None:
            table.add_row(Text(row.label), _with_result_in_green(text) if number == 0 else Text(text))
    return table


def _with_result_in_green(change: str) -> Text:
    """Of `0.488 → 0.980 ± 0.009` the number that was reached."""
    before, arrow, after = change.partition(" → ")
    value, plus_minus, error = after.partition(" ± ")
    return Text.assemble(before + arrow, (value, "bold green"), plus_minus + error)


def end_lines(run: Path, headline: Headline) -> list[Text]:
    """Where things are and what to do next: not in the table, because what is broken at its border cannot be copied."""
    name = printable(str(run))
    lines = {"folder of the run": name}
    checkpoints = list_checkpoints(run)
    if checkpoints:
        lines["trained model"] = printable(str(checkpoints[-1].model))
        best = read_best(run)
        if best is not None:
            model = "the starting model" if best.is_starting_model else printable(str(best_model(run)))
            lines["best model"] = f"{model} ({best.metric.replace('_', ' ')} {best.value:.3f}, step {best.step})"
        lines["evaluate it"] = f"tba eval {shlex.quote(name)} {headline.eval_flags}".rstrip()
    lines["look at responses"] = f"tba samples {shlex.quote(name)}"
    lines["look at curves"] = f"tensorboard --logdir {shlex.quote(name)}"
    return [Text.assemble((f"{label:<17}", "bold"), f"  {text}") for label, text in lines.items()]
