"""What `tba config` prints: the settings as TOML, and those that are not set as comments, each with its meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from tba.config import text
from tba.config.help import settings_of_section
from tba.config.section import Section
from tba.config.settings import Config

_WIDTH = 110


def template(config: Config) -> str:
    """A file to edit: read back, it gives these settings."""
    parts = []
    for name, values in config.model_dump(mode="json").items():
        section: Section = getattr(config, name)
        unset = {key for key, value in values.items() if value is None}
        lines = [text.to_toml({name: values}).rstrip("\n"), *_comments(name, section, unset)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _comments(name: str, section: Section, unset: set[str]) -> Iterator[str]:
    for setting in settings_of_section(name, type(section)):
        key = setting.name.partition(".")[2]
        if key in unset:
            yield from textwrap.wrap(setting.meaning, _WIDTH, initial_indent="# ", subsequent_indent="# ")
            yield f"# {key} = ({setting.type})"
