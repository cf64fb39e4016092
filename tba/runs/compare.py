"""`tba compare RUN RUN …`: summaries side by side, and what each evaluation reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from tba.runs.metrics import read_metrics
from tba.runs.plots import Curves, draw_curves, draw_front
from tba.runs.summary import SUMMARY, headline_of_run, summarise
from tba.runs.terminal import terminal
from tba.tasks import Headline
from tba.types import TbaError


@dataclass(frozen=True)
class Point:
    """One evaluation of one run: what was won, and at which KL to the reference."""

    run: str
    step: int
    kl: float
    win_rate: float
    win_rate_se: float | None
    length: float | None
    reference_length: float | None


def show_comparison(runs: Sequence[Path], plot: Path | None = None) -> None:
    summaries = [_read(run) for run in runs]
    names = _names(runs)
    table = Table("", *(Column(Text(name)) for name in names))
    for key in dict.fromkeys(key for summary in summaries for key in summary):
        if any(summary.get(key) is not None for summary in summaries):
            table.add_row(Text(key), *(_cell(summary.get(key)) for summary in summaries))
    console = terminal()
    console.print(table)
    records = {name: read_metrics(run) for name, run in zip(names, runs, strict=True)}
    points = [point for name, found in records.items() for point in points_of(name, _evaluations(found))]
    if points:
        console.print(_front_table(points))
    if plot is None:
        return
    if points:
        draw_front(points, pareto_front(points), plot)
    elif any(record["kind"] in ("eval", "search") for found in records.values() for record in found):
        headlines = dict(zip(names, map(headline_of_run, runs), strict=True))
        draw_curves({name: _curves(found, headlines[name]) for name, found in records.items()}, plot)
    else:
        raise TbaError("nothing to draw yet: none of these runs has an evaluation or a report of a Searcher")
    console.print(f"drawn: {plot}", soft_wrap=True)


def points_of(name: str, evals: Sequence[dict[str, Any]]) -> list[Point]:
    """The evaluations that have both a win rate and a KL."""
    return [
        Point(
            run=name,
            step=e["step"],
            kl=e["kl"],
            win_rate=e["win_rate"],
            win_rate_se=e.get("win_rate_se"),
            length=e.get("completions/mean_length"),
            reference_length=e.get("reference/mean_length"),
        )
        for e in evals
        if e.get("win_rate") is not None and e.get("kl") is not None
    ]


def _curves(records: Sequence[dict[str, Any]], headline: Headline) -> Curves:
    evals = _evaluations(records)
    name = headline.metric_of(evals[-1]) if evals else headline.metric
    return Curves(
        name,
        [(e["time"] / 60, e[name], e.get(f"{name}_se")) for e in evals if e.get(name) is not None],
        [(r["time"] / 60, r["reward"]) for r in records if r["kind"] == "search"],
    )


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Those that no other beats: none has at least their win rate at no more KL, and more or less of one. By KL."""
    front: list[Point] = []
    best = -1.0
    for point in sorted(points, key=lambda p: (p.kl, -p.win_rate)):
        if point.win_rate > best:
            front.append(point)
            best = point.win_rate
    return front


def _front_table(points: Sequence[Point]) -> Table:
    front = set(pareto_front(points))
    table = Table(title="win rate against KL; * on the Pareto front", title_justify="left")
    for column in ("run", "step", "KL", "win rate", "length", "reference length", ""):
        table.add_column(column, justify="left" if column in ("run", "") else "right")
    for p in points:
        error = "" if p.win_rate_se is None else f" ± {p.win_rate_se:.3f}"
        mark = "*" if p in front else ""
        lengths = ("–" if value is None else f"{value:.0f}" for value in (p.length, p.reference_length))
        table.add_row(Text(p.run), str(p.step), f"{p.kl:.3f}", f"{p.win_rate:.3f}{error}", *lengths, mark)
    return table


def _evaluations(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["step"])


def _names(runs: Sequence[Path]) -> list[str]:
    """Folder names, or whole paths where two are alike."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]


def _read(run: Path) -> dict[str, Any]:
    """The summary; of a run that has not ended, what there is so far."""
    if (run / SUMMARY).is_file():
        summary: dict[str, Any] = json.loads((run / SUMMARY).read_text("utf-8"))
        return summary
    records = read_metrics(run)
    if not records:
        raise TbaError(f"{run} has neither {SUMMARY} nor metrics: it is not a run, or has just begun")
    return summarise(records, headline_of_run(run))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
