"""Writes docs/configuration.md from the settings themselves; `--check` fails if the file is not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from tba.config.help import settings_markdown

TARGET = Path(__file__).parent.parent / "docs" / "configuration.md"

HEAD = """\
# Settings

<!-- Written by `make docs` from the files of tba/config. Do not edit. -->

A setting is given in a TOML file (`[trainer]` then `learning_rate = 1e-6`) or on the command line
(`--trainer.learning-rate 1e-6`), the latter winning. `model = "x"`, `task = "x"` and `reward = "m:f"` are short for
`model.path`, `task.kind` and `reward.functions`. Unknown settings are refused. `tba config` prints the resolved
settings as a file to edit, with those that are not set as comments, and every run keeps its own in its `config.toml`.
`tba train --help trainer` shows a section, `tba train --help trainer.learning_rate` a setting.

Without a model of its own a run starts from the embedded default, `tba/embedded.toml`; everything else starts from
the defaults below.

"""


def main() -> int:
    text = HEAD + settings_markdown()
    if "--check" not in sys.argv:
        TARGET.write_text(text, "utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text("utf-8") == text:
        return 0
    print("docs/configuration.md is not up to date: run `make docs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
