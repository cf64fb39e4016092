"""What is wrong with settings, in one line that names the setting and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from tba import objectives, tasks

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
        meant = [name for name in known if name.endswith(f".{where}")] or get_close_matches(where, known, 1, 0.8)
        guess = f"did you mean {meant[0]}? " if meant else ""
        return f"unknown setting {where}: {guess}`{listed_by}` lists the settings"
    if fault["type"] == "missing":
        return f"{where} is missing: set it with --{where.replace('_', '-')}"
    if fault["type"] == "union_tag_invalid":
        return f"unknown {where} {fault['ctx']['tag']!r}: one of {fault['ctx']['expected_tags']}"
    message = fault["msg"][0].lower() + fault["msg"][1:]
    return f"{where} = {fault['input']!r}: {message}"
