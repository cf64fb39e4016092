"""`tba compare RUN RUN …`: the settings in which runs differ, and their results side by side, in words or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from tba.runs.curves import AXES, curves_of
from tba.runs.front import front_table, pareto_front, points_of
from tba.runs.metrics import read_metrics
from tba.runs.plots import check_can_draw, draw_curves, draw_front
from tba.runs.settings_diff import setting_text, settings_that_differ
from tba.runs.state import Standing, State, standing_of
from tba.runs.summary import SUMMARY, headline_of_run, summarise
from tba.runs.summary_rows import SummaryRow, summary_rows
from tba.runs.terminal import terminal
from tba.samples.text import printable
from tba.tasks import Headline
from tba.types import TbaError

__all__ = ["AXES", "show_comparison"]

_WIDTH_OF_KEYS, _WIDTH_OF_RUN = 88, 32
"""Columns of a terminal that labels and keys take, and each run."""


@dataclass(frozen=True)
class Compared:
    """A run among others."""

    name: str
    path: Path
    standing: Standing
    headline: Headline

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        return read_metrics(self.path)

    @cached_property
    def summary(self) -> Mapping[str, Any]:
        """What it said in the end; of a run that has not ended, what there is so far."""
        if self.standing.summary is not None and self.standing.state is not State.RUNNING:
            return self.standing.summary
        if not self.records:
            raise TbaError(f"{self.path} has neither {SUMMARY} nor metrics: it is not a run, or has just begun")
        return summarise(self.records, self.headline)


def show_comparison(
    runs: Sequence[Path], plot: Path | None = None, *, axis: str | None = None, as_json: bool = False
) -> None:
    """Print tables or JSON, and draw. `axis` is one of `AXES`. Without one, runs that are judged by a win rate are
    drawn over their KL, and others over minutes."""
    if plot is not None:
        check_can_draw()
    compared = [
        Compared(name, run, standing_of(run), headline_of_run(run))
        for name, run in zip(_names(runs), runs, strict=True)
    ]
    differ = settings_that_differ(runs)
    if as_json:
        print(json.dumps(_as_json(compared, differ), indent=2))
    else:
        _print(compared, differ)
    if plot is not None:
        _draw(compared, plot, axis)
        if not as_json:
            terminal().print(f"drawn: {plot}", soft_wrap=True)


def _print(compared: Sequence[Compared], differ: Mapping[str, Sequence[Any]]) -> None:
    console = terminal()
    if differ:
        console.print(_settings_table(compared, differ))
    elif len(compared) > 1:
        console.print("All settings of these runs are the same.")
    has_room = console.width >= _WIDTH_OF_KEYS + _WIDTH_OF_RUN * len(compared)
    console.print(_results_table(compared, with_keys=has_room))
    if not has_room:
        console.print("The same numbers by their names in summary.json: tba compare … --json", style="dim")
    points = [point for one in compared for point in points_of(one.name, _evaluations(one.records))]
    if points:
        console.print(front_table(points))


def _settings_table(compared: Sequence[Compared], differ: Mapping[str, Sequence[Any]]) -> Table:
    table = Table("", *_columns(compared), title="settings that differ", title_justify="left")
    for name, values in differ.items():
        table.add_row(Text(printable(name)), *(Text(printable(setting_text(value))) for value in values))
    return table


def _results_table(compared: Sequence[Compared], *, with_keys: bool) -> Table:
    """In the words of a run's own summary. With keys, the last column says where to find each number."""
    table = Table("", *_columns(compared), title="results", title_justify="left")
    if with_keys:
        table.add_column("in summary.json", style="dim", no_wrap=True)
    table.add_row("state", *(f"{one.standing.state}, step {one.standing.step:,}" for one in compared))
    for label, rows in _rows(compared).items():
        texts = [row.text(one.summary) if row else None for row, one in zip(rows, compared, strict=True)]
        if any(text is not None for text in texts):
            cells = [label, *("–" if text is None else text for text in texts)]
            table.add_row(*map(Text, cells), *([_keys_of(rows)] if with_keys else []))
    return table


def _keys_of(rows: Sequence[SummaryRow | None]) -> str:
    """`reward_first, …_last`: where keys begin alike, the beginning stands once."""
    keys = list(dict.fromkeys(key for row in rows if row for key in row.keys))
    words = [key.split("_") for key in keys]
    num_alike = sum(1 for _ in takewhile(lambda same: len(set(same)) == 1, zip(*words, strict=False)))
    alike = ["…"] if num_alike else []
    return ", ".join([keys[0], *("_".join([*alike, *rest[num_alike:]]) for rest in words[1:])])


def _rows(compared: Sequence[Compared]) -> dict[str, list[SummaryRow | None]]:
    """By label, each run's own row: runs of several tasks are judged by several numbers."""
    each = [{row.label: row for row in summary_rows(one.headline)} for one in compared]
    labels = dict.fromkeys(label for position in zip(*each, strict=False) for label in position)
    labels |= dict.fromkeys(label for rows in each for label in rows)
    return {label: [rows.get(label) for rows in each] for label in labels}


def _columns(compared: Sequence[Compared]) -> list[Column]:
    return [Column(Text(printable(one.name)), overflow="fold") for one in compared]


def _draw(compared: Sequence[Compared], plot: Path, axis: str | None) -> None:
    points = [point for one in compared for point in points_of(one.name, _evaluations(one.records))]
    if points and axis is None:
        draw_front(points, pareto_front(points), plot)
    elif any(record["kind"] in ("eval", "search") for one in compared for record in one.records):
        over = axis or "minutes"
        draw_curves({one.name: curves_of(one.records, one.headline, over) for one in compared}, plot, over=AXES[over])
    else:
        raise TbaError("nothing to draw yet: none of these runs has an evaluation or a report of a Searcher")


def _as_json(compared: Sequence[Compared], differ: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    names = [one.name for one in compared]
    return {
        "runs": {
            one.name: {
                "path": str(one.path),
                "state": str(one.standing.state),
                "step": one.standing.step,
                "num_steps": one.standing.num_steps,
                "summary": one.summary,
            }
            for one in compared
        },
        "settings_that_differ": {name: dict(zip(names, values, strict=True)) for name, values in differ.items()},
    }


def _evaluations(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["step"])


def _names(runs: Sequence[Path]) -> list[str]:
    """Folder names, or whole paths where two are alike."""
    names = [run.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run) for run in runs]
