"""Standard output: what is printed to a terminal, and to a pipe or a log, where nobody wants lines broken."""

from __future__ import annotations

import os

from rich.console import Console

_WIDTH_OF_LOGS = 400


def terminal(*, quiet: bool = False) -> Console:
    """Prints what it is given as it is. Without a terminal, and unless COLUMNS says how wide it is, nothing is too long
    for a line."""
    console = Console(highlight=False, markup=False, quiet=quiet)
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_LOGS
    return console
