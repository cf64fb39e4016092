"""Standard output: what is printed to a terminal, and to a pipe or a log, where nobody wants lines broken."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_WIDTH_OF_LOGS = 400
_BETWEEN = " · "


def terminal(*, quiet: bool = False) -> Console:
    """Prints what it is given as it is. Without a terminal, and unless COLUMNS says how wide it is, nothing is too long
    for a line."""
    console = Console(highlight=False, markup=False, quiet=quiet)
    if not console.is_terminal and not console.is_jupyter and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_LOGS
    return console


def can_redraw(console: Console) -> bool:
    """Whether a panel or a bar can be drawn again in its place."""
    return console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)


class Phrases:
    """Phrases side by side, as many as there is room for. A line ends between two of them, never within one."""

    def __init__(self, phrases: Sequence[str | Text]) -> None:
        self._phrases = [Text(phrase) if isinstance(phrase, str) else phrase for phrase in phrases]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(no_wrap=True, overflow="ellipsis")
        for phrase in self._phrases:
            if line and line.cell_len + len(_BETWEEN) + phrase.cell_len > options.max_width:
                yield line
                line = Text(no_wrap=True, overflow="ellipsis")
            line = Text.assemble(line, _BETWEEN, phrase) if line else Text.assemble(phrase)
            line.no_wrap, line.overflow = True, "ellipsis"
        yield line

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        lengths = [phrase.cell_len for phrase in self._phrases] or [0]
        together = sum(lengths) + len(_BETWEEN) * (len(lengths) - 1)
        return Measurement(max(lengths), together).with_maximum(options.max_width)


@contextmanager
def no_mark_of_ctrl_c() -> Iterator[None]:
    """The terminal does not print `^C` meanwhile: it would move the cursor, and leave part of a panel behind."""
    try:
        import termios

        before = termios.tcgetattr(sys.stdin)
    except Exception:  # no terminal: which error that is depends on what stands in for it
        yield
        return
    without = list(before)
    without[3] &= ~termios.ECHOCTL
    with suppress(termios.error):
        termios.tcsetattr(sys.stdin, termios.TCSANOW, without)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
