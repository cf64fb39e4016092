"""docs/command-line.md: what `tba --help` and `tba COMMAND --help` print."""

from __future__ import annotations

import contextlib
import io
import os

from tba import cli
from tba.config.help import settings_text

HEAD = """\
# Commands

<!-- Written by `make docs` from `tba COMMAND --help`. Do not edit. -->

On this page you can look up every command and its options. `tba COMMAND --help` prints the same. Settings, which many
commands take as `--section.key value`, have [a page of their own](configuration.md).

"""
EXIT_CODES = """\
## Exit codes

| code | meaning |
| --- | --- |
| 0 | done, or ended early in order |
| 1 | the run failed |
| 2 | a mistake in what was asked for: one line says which |
| 130 | stopped by Ctrl-C; `tba train --resume RUN` continues |
"""


def command_line_page() -> str:
    parts = [HEAD, block("tba", printed("--help"))]
    for name in cli.COMMANDS:
        parts.append(block(f"tba {name}", without_repeats(printed(name, "--help"))))
    return "\n".join([*parts, EXIT_CODES])


def printed(*words: str) -> str:
    """As in a terminal of 100 columns, without colours."""
    output = io.StringIO()
    kept = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS="100", NO_COLOR="1")
    try:
        with contextlib.redirect_stdout(output):
            cli.main(words)
    finally:
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    return output.getvalue()


def without_repeats(text: str) -> str:
    """Without the lists of all commands and of all settings, which this page and that of the settings have already."""
    text = text.replace(cli.USAGE, "").replace(settings_text(), "  (see the page of the settings)\n")
    return text.strip("\n") + "\n" if text.strip() else "It has no options.\n"


def block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"
