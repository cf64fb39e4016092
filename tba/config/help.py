"""The settings as text: what `tba train --help` and `tba config` print, and docs/configuration.md is made of."""

from __future__ import annotations

import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.fields import FieldInfo

from tba import tasks
from tba.config.section import Section
from tba.config.settings import Config
from tba.tasks import TaskSettings
from tba.types import TbaError

_WIDTH = 110


@dataclass(frozen=True)
class Setting:
    name: str
    type: str
    default: str
    meaning: str

    @property
    def flag(self) -> str:
        """As the command line has it."""
        return f"--{self.name.replace('_', '-')}"


def sections() -> Iterator[tuple[str, str, list[Setting]]]:
    """Each section: its name, what it is about, its settings. Where there are kinds, each has a section."""
    for name, field in Config.model_fields.items():
        for model in _models(field.annotation):
            title = f"{name} (kind = {kind_of(model)})" if "kind" in model.model_fields else name
            yield title, _one_line(model.__doc__), settings_of_section(name, model)


def settings_of_section(name: str, model: type[Section]) -> list[Setting]:
    return [_setting(f"{name}.{key}", info) for key, info in model.model_fields.items()]


def kind_of(model: type[Section]) -> str:
    field = model.model_fields["kind"]
    return "module:Class" if field.is_required() else str(field.default)


def setting_names() -> list[str]:
    return [setting.name for _, _, settings in sections() for setting in settings]


def settings_text(is_wanted: Callable[[str], bool] = lambda name: True, width: int = _WIDTH) -> str:
    """The settings whose names are wanted, by section. Of a kind that has all settings of another one, those that
    differ."""
    lines: list[str] = []
    told: dict[str, list[Setting]] = {}
    for title, about, settings in sections():
        wanted = [setting for setting in settings if is_wanted(setting.name)]
        if not wanted:
            continue
        like = _like(wanted, told)
        told[title] = wanted
        if like is not None:
            others = [*told[like], *(s for s in wanted if s.name.endswith(".kind"))]
            wanted = [setting for setting in wanted if setting not in others]
            about += f" It has the settings of {like.partition('kind = ')[2].rstrip(')')}"
            about += ", and these:" if wanted else "."
        lines += textwrap.wrap(f"{title}: {about}", width, subsequent_indent="  ")
        for setting in wanted:
            lines += setting_lines(setting, width)
        lines.append("")
    return "\n".join(lines)


def _like(settings: Sequence[Setting], told: Mapping[str, Sequence[Setting]]) -> str | None:
    """The title of a kind that was told already, all of whose settings are among these, and most of them alike."""
    names = {setting.name for setting in settings}
    for title, others in told.items():
        num_alike = sum(setting in settings for setting in others)
        if {other.name for other in others} <= names and 2 * num_alike > len(settings):
            return title
    return None


def setting_lines(setting: Setting, width: int = _WIDTH) -> list[str]:
    """As the help shows one."""
    head = f"  {setting.flag} {setting.type}"
    meaning = textwrap.wrap(setting.meaning, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return [f"{head}  [{setting.default}]" if setting.default else head, *meaning]


def settings_markdown() -> str:
    lines = []
    for title, about, settings in sections():
        lines += [f"## {title}", "", about, "", "| setting | type | default | meaning |", "| --- | --- | --- | --- |"]
        for s in settings:
            type_text = s.type.replace("|", "\\|")
            lines.append(f"| `{s.name}` | {type_text} | {f'`{s.default}`' if s.default else ''} | {s.meaning} |")
        lines.append("")
    return "\n".join(lines)


def task_lines() -> list[str]:
    """One line for each kind of task. One that a package adds and that is broken gets a line that says so."""
    return [f"{kind:<14} {_about(kind)}" for kind in tasks.kinds()]


def _about(kind: str) -> str:
    try:
        return _one_line(tasks.settings_of(kind).__doc__)
    except TbaError as error:
        return str(error)


def _models(annotation: Any) -> list[type[Section]]:
    if annotation is TaskSettings:  # it stands for the kinds that packages add
        return _installed_tasks()
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models(part)]


def _installed_tasks() -> list[type[Section]]:
    found: list[type[Section]] = []
    for kind in tasks.installed_kinds():
        with suppress(TbaError):  # `tba tasks` tells
            found.append(tasks.settings_of(kind))
    return found


def _setting(name: str, info: FieldInfo) -> Setting:
    default = "" if info.is_required() or info.default in (None, {}) else str(info.default).replace("\n", "\\n")
    if isinstance(info.default, tuple):
        default = ",".join(map(str, info.default))
    if isinstance(info.default, bool):
        default = str(info.default).lower()
    return Setting(name, _type(info.annotation), default, _one_line(info.description))


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is Literal:
        return "|".join(typing.get_args(annotation))
    if typing.get_origin(annotation) is dict:
        return "table"
    if typing.get_origin(annotation) is tuple:
        return f"{_type(typing.get_args(annotation)[0])},…"
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return "|".join(_type(part) for part in typing.get_args(annotation) if part is not type(None))
    return {"str": "text", "int": "integer", "float": "number", "bool": "true|false"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())
