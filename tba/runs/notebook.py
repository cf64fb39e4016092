"""The live panel in a notebook: HTML that is updated in place. rich's own needs ipywidgets there, which few have."""

from __future__ import annotations

import io
import math
import time
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

_WIDTH = 110
_UPDATE_SECONDS = 1.0
_FORMAT = '<pre style="white-space:pre;line-height:normal;font-family:monospace">{code}</pre>'


def live_panel(renderable: RenderableType, console: Console) -> Live | NotebookPanel:
    """What shows the panel and takes its updates, on a terminal or in a notebook."""
    if console.is_jupyter:
        return NotebookPanel(renderable)
    return Live(renderable, console=console, refresh_per_second=4, transient=True, vertical_overflow="crop")


class NotebookPanel:
    """Has the methods of rich's `Live` that a display uses."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable
        self._handle: Any = None
        self._shown = -math.inf

    def start(self) -> None:
        from IPython.display import HTML, display

        self._handle = display(HTML(as_html(self._renderable)), display_id=True)

    def update(self, renderable: RenderableType) -> None:
        """At most once a second: every update is kept by some front ends."""
        self._renderable = renderable
        if time.monotonic() - self._shown >= _UPDATE_SECONDS:
            self._shown = time.monotonic()
            self._show(as_html(renderable))

    def stop(self) -> None:
        """Take the panel away: the summary stands in its place."""
        self._show("")

    def _show(self, text: str) -> None:
        from IPython.display import HTML

        if self._handle is not None:  # None outside of IPython
            self._handle.update(HTML(text))


def as_html(renderable: RenderableType) -> str:
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), force_jupyter=False, force_terminal=True)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format=_FORMAT)
