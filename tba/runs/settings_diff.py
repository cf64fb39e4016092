"""The settings in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tba.runs.run_config import read_run_config
from tba.runs.state import read_settings
from tba.types import TbaError

_OF_THE_FOLDER = ("run.name", "run.root", "run.display")
"""Settings that say where a run is and how it is shown, and nothing of what it does."""


def settings_that_differ(runs: Sequence[Path]) -> dict[str, list[Any]]:
    """`trainer.learning_rate` and its like: the value of each run, None where a run has none."""
    each = [flat_settings(run) for run in runs]
    names = dict.fromkeys(name for settings in each for name in settings)
    told = [settings for settings in each if settings]
    differ = [name for name in names if any(settings.get(name) != told[0].get(name) for settings in told)]
    return {name: [settings.get(name) for settings in each] for name in differ if name not in _OF_THE_FOLDER}


def flat_settings(run: Path) -> dict[str, Any]:
    """By their dotted names, with the defaults that the run did not write down. What this version cannot check, such as
    the task of a package that is not installed here, is taken as it is written. Empty if nothing can be read."""
    try:
        settings = read_run_config(run).model_dump(mode="json")
    except TbaError:
        try:
            settings = read_settings(run)
        except TbaError:
            return {}
    return {name: value for name, value in _flat(settings) if value is not None}


def setting_text(value: Any) -> str:
    """As one types it."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _flat(settings: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{before}{key}.")
        else:
            found.append((f"{before}{key}", value))
    return found
