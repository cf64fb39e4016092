"""Writes the generated pages, and the generated parts of others; `--check` fails if one of them is not up to date."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from command_line_page import command_line_page
from memory_table import memory_table
from names_table import names_table
from python_api_page import python_api_page
from staleness_figure import figure

from tba.config.help import settings_markdown

DOCS = Path(__file__).parent.parent / "docs"

SETTINGS_HEAD = """\
# Settings

<!-- Written by `make docs` from the files of tba/config. Do not edit. -->

On this page you can look up every setting, what it does, and its default.

A setting is given in a TOML file (`[trainer]` then `learning_rate = 1e-6`) or on the command line
(`--trainer.learning-rate 1e-6`), which wins. `model = "x"`, `task = "x"` and `reward = "m:f"` are short for
`model.path`, `task.kind` and `reward.functions`. Unknown settings are refused. `tba config` prints the resolved
settings as a file to edit, with those that are not set as comments, and every run keeps its own in its `config.toml`.
`tba train --help trainer` shows a section, `tba train --help trainer.learning_rate` a setting.

Without a model of its own a run starts from the embedded default, `tba/embedded.toml`; everything else starts from
the defaults below.

"""
PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": lambda: SETTINGS_HEAD + settings_markdown(),
    "command-line.md": command_line_page,
    "python-api.md": python_api_page,
    "images/staleness.svg": figure,
}
"""Files that are written whole."""
PARTS: dict[str, tuple[str, Callable[[], str]]] = {
    "hardware.md": ("memory table", memory_table),
    "coming-from.md": ("names table", names_table),
}
"""Pages with one part that is written, between two comments."""


def main() -> int:
    stale = [name for name in (*PAGES, *PARTS) if text_of(name) != wanted(name)]
    if "--check" not in sys.argv:
        for name in stale:
            (DOCS / name).write_text(wanted(name), "utf-8")
        return 0
    for name in stale:
        print(f"docs/{name} is not up to date: run `make docs`", file=sys.stderr)
    return 1 if stale else 0


def text_of(name: str) -> str | None:
    return (DOCS / name).read_text("utf-8") if (DOCS / name).exists() else None


def wanted(name: str) -> str:
    if name in PAGES:
        return PAGES[name]()
    part, written = PARTS[name]
    before, after = f"<!-- {part}: written by `make docs` -->\n", f"<!-- end of the {part} -->\n"
    head, _, rest = (text_of(name) or "").partition(before)
    _, _, tail = rest.partition(after)
    return f"{head}{before}{written()}{after}{tail}"


if __name__ == "__main__":
    sys.exit(main())
