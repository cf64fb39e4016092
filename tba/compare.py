"""`tba compare RUN RUN …`: summaries side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tba.summary import FILE
from tba.types import TbaError


def show_comparison(runs: Sequence[Path]) -> None:
    summaries = [_read(run) for run in runs]
    table = Table("", *(run.name for run in runs))
    for key in summaries[0]:
        table.add_row(key, *(_cell(summary.get(key)) for summary in summaries))
    Console(highlight=False).print(table)


def _read(run: Path) -> dict[str, Any]:
    try:
        summary: dict[str, Any] = json.loads((run / FILE).read_text("utf-8"))
    except FileNotFoundError:
        raise TbaError(f"{run} has no {FILE}: it is not a run, or has not ended yet") from None
    return summary


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
