"""Objectives, each in a file of its own with its `Settings`: the name of the file is the kind."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import BeforeValidator, Discriminator, Tag

from tba.objectives import own
from tba.objectives.base import Evidence, Loss, Objective, ObjectiveSettings, StepTotals

KINDS = (
    "trajectory_balance",
    "trajectory_balance_learned_z",
    "tba_prime",
    "rloo",
    "grpo",
    "dr_grpo",
)
"""Files of this folder that are objectives. The first is the default."""

OWN = "own"
"""Stands for the kinds that are code of the user's, `module:Class`."""
_SETTINGS: dict[str, type[ObjectiveSettings]] = {
    **{kind: import_module(f"tba.objectives.{kind}").Settings for kind in KINDS},
    OWN: own.Settings,
}


def _tag(settings: Any) -> str:
    kind = str(settings["kind"] if isinstance(settings, Mapping) else settings.kind)
    return OWN if ":" in kind else kind


def _with_kind(settings: Any) -> Any:
    return {"kind": KINDS[0], **settings} if isinstance(settings, Mapping) else settings


if TYPE_CHECKING:
    ObjectiveConfig = ObjectiveSettings
else:
    ObjectiveConfig = Annotated[
        Union[tuple(Annotated[model, Tag(tag)] for tag, model in _SETTINGS.items())],  # noqa: UP007
        Discriminator(_tag),
        BeforeValidator(_with_kind),
    ]


def carried_over(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Of the settings of one objective, those that another kind has as well."""
    if settings.get("kind", KINDS[0]) == kind:
        return dict(settings)
    known = _SETTINGS[kind].model_fields if kind in KINDS else {}
    return {name: value for name, value in settings.items() if name in known and name != "kind"}


def as_recorded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the file of a run says of its objective, as it was meant. Runs of 0.1.0 wrote the settings of every
    objective, whichever they had; and what a setting is now by default, runs from before there was one may not have
    done."""
    model = _SETTINGS.get(str(settings.get("kind", KINDS[0])))
    others = {name for other in KINDS for name in _SETTINGS[other].model_fields}
    if model is None:
        return dict(settings)
    own = {name: value for name, value in settings.items() if name in model.model_fields or name not in others}
    return {**model.before, **own}


def default_settings() -> ObjectiveSettings:
    return _SETTINGS[KINDS[0]].model_validate({})


__all__ = ["KINDS", "Evidence", "Loss", "Objective", "ObjectiveConfig", "ObjectiveSettings", "StepTotals"]
