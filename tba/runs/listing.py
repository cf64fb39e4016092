"""`tba runs [FOLDER]`: the runs of a folder in a table, newest first, or as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.runs.overview import FolderRow, Row, RunRow, Unreadable, rows_below
from tba.runs.state import State
from tba.runs.terminal import terminal
from tba.runs.wording import clock
from tba.samples.text import printable

_STYLES = {State.RUNNING: "cyan", State.FINISHED: "green", State.CRASHED: "red"}
_UNITS = ("kB", "MB", "GB", "TB", "PB")


def show_runs(root: Path, *, as_json: bool = False) -> None:
    rows = rows_below(root)
    if as_json:
        print(json.dumps([_record(row) for row in rows], indent=2))
        return
    console = terminal()
    listed = [row for row in rows if not isinstance(row, Unreadable)]
    if listed:
        console.print(_table(listed))
    else:
        console.print(f"no runs in {printable(str(root))} yet: tba train makes one", soft_wrap=True)
    for row in rows:
        if isinstance(row, FolderRow):
            told = f"{row.path.name} is a folder of {sum(row.states.values())} runs: tba runs {row.path}"
            console.print(Text(printable(told)), soft_wrap=True)
    for row in rows:
        if isinstance(row, Unreadable):
            told = f"{row.path.name} is not listed: {row.why}"
            console.print(Text(printable(told), style="dim"), soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    metrics = {row.metric for row in rows if isinstance(row, RunRow)}
    one_metric = metrics.pop().replace("_", " ") if len(metrics) == 1 else ""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold")
    table.add_column("task, model", overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column(printable(f"held-out {one_metric}".rstrip()), no_wrap=True)
    for head in ("started", "took", "size"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        if isinstance(row, RunRow):
            table.add_row(*_run_cells(row, with_metric=not one_metric))
        elif isinstance(row, FolderRow):
            name = Text(printable(f"{row.path.name}/"), style="bold")
            states = ", ".join(f"{count} {state}" for state, count in row.states.items())
            table.add_row(name, states, "", "", "", when(row.started), "", bytes_text(row.num_bytes))
    return table


def _run_cells(row: RunRow, *, with_metric: bool) -> list[str | Text]:
    standing = row.standing
    about = ", ".join(dict.fromkeys((row.task, short_model(row.model))))
    reached = headline_text(row)
    return [
        Text(printable(row.path.name), style="bold"),
        Text(printable(about)),
        Text(standing.state, style=_STYLES.get(standing.state, "yellow")),
        f"{standing.step}/{standing.num_steps}",
        Text(printable(f"{row.metric.replace('_', ' ')} {reached}" if with_metric and reached else reached)),
        when(row.started),
        clock(row.seconds),
        bytes_text(row.num_bytes),
    ]


def headline_text(row: RunRow) -> str:
    """What it was before training and what it is now."""
    before = f"{row.first:.3f} → " if row.first is not None else ""
    return f"{before}{row.last:.3f}" if row.last is not None else ""


def short_model(model: str) -> str:
    """The end of a path, or of the id on a hub. A checkpoint is called by its run and step."""
    parts = [part for part in Path(model).parts if part not in ("checkpoints", "best", "model")]
    return "/".join(parts[-2:]) if parts and parts[-1].startswith("step-") else (parts or [model])[-1]


def when(seconds: float) -> str:
    """The time of day, and the date unless it is today's."""
    then = time.localtime(seconds)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M" if is_today else "%Y-%m-%d %H:%M", then)


def bytes_text(count: float) -> str:
    units = iter(_UNITS)
    unit, count = next(units), count / 1000
    while count >= 999.5:
        unit, count = next(units), count / 1000
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"


def _record(row: Row) -> dict[str, Any]:
    if isinstance(row, Unreadable):
        return {"path": str(row.path), "kind": "unreadable", "why": row.why}
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row.started))
    common = {"path": str(row.path), "started": started, "num_bytes": row.num_bytes}
    if isinstance(row, FolderRow):
        return {**common, "kind": "folder", "states": {str(state): count for state, count in row.states.items()}}
    return {
        **common,
        "kind": "run",
        "task": row.task,
        "model": row.model,
        "state": str(row.standing.state),
        "step": row.standing.step,
        "num_steps": row.standing.num_steps,
        "judged_by": row.metric,
        "first": row.first,
        "last": row.last,
        "seconds": round(row.seconds, 3),
    }
