"""Every setting does something: a setting that no part of the program reads is a promise that nobody keeps.

Reads are found in the source: `config.trainer.num_steps`, or an attribute of that name in a module that names the
section's class, or one that the section has the setting from. A property of a section counts as a read of the settings
it is made of, if it is itself read.
"""

from __future__ import annotations

import ast
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tba.config.run import RunConfig
from tba.config.section import Section
from tba.config.settings import Config
from tba.objectives import ObjectiveSettings
from tba.tasks import TaskSettings

PACKAGE = Path(__file__).parent.parent / "tba"
NAMES_OF_KINDS = "kind"
"""Of a task or an objective it is the discriminator of the union, which pydantic reads."""


def sections(annotation: Any) -> list[type[Section]]:
    if annotation is TaskSettings:  # stands for the kinds that packages add
        return []
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in sections(part)]


SECTIONS = [(name, model) for name, field in Config.model_fields.items() for model in sections(field.annotation)]
SETTINGS = [(name, model, setting) for name, model in SECTIONS for setting in model.model_fields]


HANDED_ON = {"tba.tasks.redteam": "rewards/redteam.py"}
"""Modules whose settings are handed on whole, as keyword arguments of a function in that file."""


@dataclass
class Source:
    """What one file of the package mentions."""

    attributes: dict[str, set[str]] = field(default_factory=dict)
    """By attribute that is read: what it is read of, `c` for `a.b.c.attribute`."""
    variables: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    """Among them names for `getattr`."""
    assigned: dict[str, set[str]] = field(default_factory=dict)
    """By attribute: the variables it is assigned to."""

    @classmethod
    def of(cls, path: Path) -> Source:
        found = cls()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                found.attributes.setdefault(node.attr, set()).add(last_name(node.value))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.variables.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.strings.add(node.value)
            elif isinstance(node, ast.Assign):
                for target, value in assignments(node):
                    if isinstance(value, ast.Attribute):
                        found.assigned.setdefault(value.attr, set()).add(last_name(target))
        return found

    def reads(self, section: str, model: type[Section], setting: str, *, is_own: bool) -> bool:
        """`is_own`: the class is defined here. Many have the same name, which means nothing in other files."""
        read_of = self.attributes.get(setting, set())
        if read_of & ({section} | self.assigned.get(section, set())):
            return True
        named = is_own if issubclass(model, TaskSettings) else bool(names_with(model, setting) & self.variables)
        return named and bool(read_of or setting in self.strings)


def names_with(model: type[Section], setting: str) -> set[str]:
    """The class, and those that it has the setting from: a function may ask for one of them only."""
    return {base.__name__ for base in model.__mro__ if issubclass(base, Section) and setting in base.model_fields}


def assignments(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """`a, b = x.y, x.z` is two of them."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@cache
def sources() -> dict[str, Source]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if not path.name.startswith("config")]
    return {str(path.relative_to(PACKAGE)): Source.of(path) for path in paths}


def is_read(section: str, model: type[Section], setting: str) -> bool:
    own = f"{model.__module__.removeprefix('tba.').replace('.', '/')}.py"
    if any(source.reads(section, model, setting, is_own=path == own) for path, source in sources().items()):
        return True
    if model.__module__ in HANDED_ON and setting in sources()[HANDED_ON[model.__module__]].variables:
        return True
    if any(setting in function.__code__.co_names for function in uses_of(model)):
        return True
    return any(is_read(section, model, name) for name in properties_made_of(model, setting))


def uses_of(model: type[Section]) -> list[types.FunctionType]:
    """Functions of an objective's settings that compute something. (Checks only look at settings.)"""
    if not issubclass(model, ObjectiveSettings):
        return []
    found = [value for base in model.__mro__ for value in vars(base).values() if isinstance(value, types.FunctionType)]
    return [function for function in found if function.__module__.startswith("tba.objectives")]


def properties_made_of(model: type[Section], setting: str) -> list[str]:
    """Properties of the class that read the setting. (Checks read settings too, and make no use of them.)"""
    return [
        name
        for name, value in vars(model).items()
        if isinstance(value, property) and value.fget is not None and setting in value.fget.__code__.co_names
    ]


def test_a_setting_that_nobody_reads_is_found() -> None:
    """The guard of the guard."""
    assert not is_read("run", RunConfig, "no_such_setting")
    assert not is_read("engine", type("Unknown", (Section,), {}), "kind"), "other sections have a kind, this has none"
    assert is_read("run", RunConfig, "seed")


@pytest.mark.parametrize(("section", "model", "setting"), SETTINGS, ids=lambda part: getattr(part, "__name__", part))
def test_every_setting_is_read(section: str, model: type[Section], setting: str) -> None:
    if section in ("task", "objective") and setting == NAMES_OF_KINDS:
        return
    assert is_read(section, model, setting), f"{section}.{setting} is read nowhere: use it or remove it"
