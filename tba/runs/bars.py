"""A bar for work of known length, and plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(console: Console | None = None) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, transient=True, console=console)


def follow(bar: Progress, what: str, total: int) -> Callable[[int], None]:
    """Takes how many more are done. Where there is no terminal for the bar, every tenth of them is a line."""
    shown = bar.add_task(what, total=total)
    tenths = 0

    def advance(done: int) -> None:
        nonlocal tenths
        bar.advance(shown, done)
        completed = int(bar.tasks[shown].completed)
        if not bar.console.is_terminal and 10 * completed // total > tenths:
            tenths = 10 * completed // total
            seconds = bar.tasks[shown].elapsed or 0.0
            bar.console.print(f"{what} {completed}/{total}, {seconds:.0f} s", highlight=False)

    return advance
