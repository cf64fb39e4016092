"""What is wrong with settings, in one line that names the setting and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tba import objectives, tasks
from tba.config.other_names import meant_by
from tba.config.text import NO_VALUE

_KINDS = {*tasks.KINDS, tasks.INSTALLED, *objectives.KINDS, objectives.OWN}
"""Parts of a fault's place that are not names of settings."""


def in_one_line(error: ValidationError, known: Sequence[str], listed_by: str) -> str:
    """Every fault once. `known` are the settings there are, of which an unknown one may be a misspelling."""
    return "; ".join(dict.fromkeys(_in_words(fault, known, listed_by) for fault in error.errors()))


def _in_words(fault: Any, known: Sequence[str], listed_by: str) -> str:
    """One fault as `section.key: what is wrong`."""
    where = ".".join(str(part) for part in fault["loc"] if part not in _KINDS)
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "extra_forbidden":
        return "; ".join(
            f"unknown setting {name}: {meant_by(name, list(known))}`{listed_by}` lists the settings"
            for name in _names_within(where, fault["input"])
        )
    if fault["type"] == "missing":
        return f"{where} is missing: set it with --{where.replace('_', '-')}"
    if fault["type"] == "union_tag_invalid":
        return f"unknown {where} {fault['ctx']['tag']!r}: one of {fault['ctx']['expected_tags']}"
    message = fault["msg"][0].lower() + fault["msg"][1:]
    if fault["input"] == NO_VALUE:
        return f"{where} needs a value: {message}"
    return f"{where} = {fault['input']!r}: {message}"


def _names_within(name: str, value: Any) -> list[str]:
    """The settings that were given under a name: of a section that there is not, those in it."""
    if not isinstance(value, Mapping) or not value:
        return [name]
    return [found for key, part in value.items() for found in _names_within(f"{name}.{key}", part)]
