"""The table at the end of a run: what it has reached, where its time went, and what to do with its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.learn.checkpoint import list_checkpoints
from tba.runs.best import best_model, read_best
from tba.runs.wording import clock, number, percent
from tba.tasks import Headline


def end_table(summary: dict[str, Any], headline: Headline) -> Table:
    """The summary of a run that has ended."""

    def change(name: str, form: str = ".3f") -> str:
        return f"{number(summary[f'{name}_first'], form)} → {number(summary[f'{name}_last'], form)}"

    table = Table(title="summary", title_justify="left", show_header=False, min_width=60)
    table.add_column(style="bold")
    table.add_column()
    name = headline.summary_name
    if summary[f"{name}_last"] is not None:
        before, after = number(summary[f"{name}_first"], ".3f"), number(summary[f"{name}_last"], ".3f")
        error = number(summary[f"{name}_last_se"], ".3f")
        reached = Text.assemble(f"{before} → ", (after, "bold green"), f" ± {error}")
        table.add_row(f"held-out {headline.metric.replace('_', ' ')}", reached)
    for beside in headline.beside:
        if beside.label and summary[f"{beside.name}_last"] is not None:
            table.add_row(f"held-out {beside.label}", change(beside.name, beside.form))
    table.add_row("reward of new responses", change("reward"))
    table.add_row("steps", f"{summary['steps']:,} in {clock(summary['wall_seconds'])}")
    table.add_row(
        "tokens/s",
        f"{number(summary['tokens_generated_per_second'], ',.0f')} generated, "
        f"{number(summary['tokens_trained_per_second'], ',.0f')} trained",
    )
    table.add_row(
        "staleness in steps",
        f"p50 {summary['staleness_p50']}, p90 {summary['staleness_p90']}, max {summary['staleness_max']}",
    )
    table.add_row(
        "time spent waiting",
        f"Trainer {percent(summary['trainer_wait_fraction'], '.1f')}, "
        f"Searchers {percent(summary['searcher_wait_fraction'], '.1f')}",
    )
    table.add_row("time spent publishing", f"Trainer {percent(summary['publish_fraction'], '.1f')}")
    if summary["rewards_failed"]:
        table.add_row("failed rewards", f"{summary['rewards_failed']:,} (events in metrics.jsonl)")
    if summary.get("alarms"):
        names = [name.removeprefix("alarms/") for name in summary if name.startswith("alarms/")]
        table.add_row("alarms", f"{', '.join(names)} (events in metrics.jsonl, docs/tuning.md)")
    return table


def end_lines(run: Path, headline: Headline) -> list[Text]:
    """Where things are and what to do next: not in the table, because what is broken at its border cannot be copied."""
    lines = {"folder of the run": str(run)}
    checkpoints = list_checkpoints(run)
    if checkpoints:
        lines["trained model"] = str(checkpoints[-1].model)
        best = read_best(run)
        if best is not None:
            model = "the starting model" if best.is_starting_model else str(best_model(run))
            lines["best model"] = f"{model} ({best.metric.replace('_', ' ')} {best.value:.3f}, step {best.step})"
        lines["evaluate it"] = f"tba eval {checkpoints[-1].model} {headline.eval_flags}".rstrip()
    lines["look at curves"] = f"tensorboard --logdir {run}"
    return [Text.assemble((f"{label:<17}", "bold"), f"  {text}") for label, text in lines.items()]
