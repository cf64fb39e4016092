"""Tasks: each kind in a file of its own, which has its settings and makes its problems.

A package adds a kind with an entry point of the group `tba.tasks`, written as the lines of `KINDS` are.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, PlainValidator, SerializeAsAny, Tag

from tba.tasks.base import Encode, Headline, Problem, Task, TaskSettings
from tba.types import TbaError, first_line

KINDS = {
    "arithmetic": "tba.tasks.arithmetic:Settings",
    "addition": "tba.tasks.addition:Settings",
    "gsm8k": "tba.tasks.word_problems:Gsm8kSettings",
    "math": "tba.tasks.word_problems:MathSettings",
    "reasoning-gym": "tba.tasks.reasoning_gym:Settings",
    "tldr": "tba.tasks.tldr:Settings",
    "redteam": "tba.tasks.redteam:Settings",
    "custom": "tba.tasks.custom:Settings",
}
"""`task.kind`, and where its settings are. The first is the default."""

DEFAULT, OWN_DATA = next(iter(KINDS)), "custom"
"""The kinds that settings without a `kind` are of: the second if they have `data`."""
GROUP = "tba.tasks"
"""The entry points with which packages add kinds."""
INSTALLED = "installed"
"""Stands for all kinds that packages add."""


def _import(place: str) -> type[TaskSettings]:
    module, _, name = place.partition(":")
    found: type[TaskSettings] = getattr(import_module(module), name)
    return found


_SETTINGS = {kind: _import(place) for kind, place in KINDS.items()}


@cache
def installed_kinds() -> Mapping[str, EntryPoint]:
    """The kinds that installed packages add, without importing them. One of ours is not replaced."""
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in KINDS}


def kinds() -> list[str]:
    return [*KINDS, *installed_kinds()]


@cache
def settings_of(kind: str) -> type[TaskSettings]:
    """The settings of a kind. Imports the package that adds it. TbaError if there is no such kind, or it is broken."""
    if kind in _SETTINGS:
        return _SETTINGS[kind]
    point = installed_kinds().get(kind)
    if point is None:
        raise TbaError(f"unknown task {kind!r}: one of {', '.join(kinds())}")
    what = f"task.kind {kind!r}, which {point.dist.name if point.dist else 'a package'} adds as {point.value},"
    try:
        found = point.load()
    except Exception as error:  # a package may raise anything while it is imported
        raise TbaError(f"{what} cannot be imported: {first_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, TaskSettings)):
        raise TbaError(f"{what} is no subclass of tba.tasks.TaskSettings")
    return found


def headline_of(kind: str) -> Headline:
    """What the kind is judged by; accuracy if the package that adds it is not installed here."""
    return settings_of(kind).headline if kind in kinds() else TaskSettings.headline


def has_data(kind: str) -> bool:
    """Whether the kind has a setting `data`: giving it to one that has does not make it another."""
    return kind in kinds() and "data" in settings_of(kind).model_fields


def task_shorthand(value: Any) -> Any:
    """`task = "x"` is short for its kind; settings without one are the user's own data, or the default task."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": OWN_DATA if "data" in value else DEFAULT, **value}
    return value


def _tag(settings: Any) -> str:
    kind = str(settings["kind"] if isinstance(settings, Mapping) else settings.kind)
    return kind if kind in KINDS else INSTALLED


def _read_installed(value: Any) -> TaskSettings:
    if isinstance(value, TaskSettings):
        return value
    try:
        model = settings_of(str(value["kind"]))
    except TbaError as error:
        raise ValueError(str(error)) from error
    return model.model_validate(value)


if TYPE_CHECKING:
    TaskConfig = TaskSettings
else:
    TaskConfig = Annotated[
        Union[
            *(Annotated[model, Tag(kind)] for kind, model in _SETTINGS.items()),
            Annotated[SerializeAsAny[TaskSettings], PlainValidator(_read_installed), Tag(INSTALLED)],
        ],
        Discriminator(_tag),
        BeforeValidator(task_shorthand),
    ]


def default_settings() -> TaskSettings:
    return _SETTINGS[DEFAULT].model_validate({})


__all__ = ["Encode", "Headline", "Problem", "Task", "TaskConfig", "TaskSettings", "kinds", "settings_of"]
