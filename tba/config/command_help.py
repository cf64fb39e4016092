"""What `tba COMMAND --help` prints: the command alone, and of the settings an overview or what is asked for."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches

from tba.config.commands import COMMANDS, Command
from tba.config.help import Setting, sections, setting_lines, settings_text
from tba.config.other_names import meant_by
from tba.types import TbaError

ALL = "all"
_MAX_WIDTH = 110
_COLUMN = 38
_SHORTHANDS = {"model.path": "model", "reward.functions": "reward", "task.kind": "task"}
"""Settings that the name of their section may stand for."""

IsTaken = Callable[[str], bool]


def command_text(name: str, topic: str | None = None, is_taken: IsTaken = lambda setting: True, more: str = "") -> str:
    """The help of a command, or of a topic: a section, a setting, or `all`. `is_taken`: which settings the command
    takes, of those in its sections. `more`: text about its other options."""
    command = COMMANDS[name]
    wanted = _taken(command, is_taken)
    if command.takes_settings and topic is not None:
        return topic_text(name, topic, wanted)
    width = _width()
    lines = [f"tba {words}" for words, _ in command.uses]
    lines += ["", *textwrap.wrap(_sentence(command.uses[0][1]) + " " + command.details, width)]
    if command.options:
        lines += ["", *(line for option in command.options for line in _two_columns(*option, width))]
    if more:
        lines += ["", more.rstrip("\n")]
    if command.takes_settings:
        lines += ["", *_overview(name, command, wanted, width)]
    if command.examples:
        lines += ["", "example:", *(f"  {example}" for example in command.examples)]
    return "\n".join(lines) + "\n"


def topic_text(command: str, topic: str, wanted: IsTaken) -> str:
    """The settings of a section or of a kind of task or objective, or one setting. TbaError if there is no such."""
    name = topic.removeprefix("--").replace("-", "_")
    width = _width()
    if name == ALL:
        return settings_text(wanted, width)
    listed = [
        (title, about, settings) for title, about, settings in sections() if any(wanted(s.name) for s in settings)
    ]
    names = {s.name for _, _, settings in listed for s in settings if wanted(s.name)}
    for title, about, settings in listed:
        kind = title.partition("kind = ")[2].rstrip(")").replace("-", "_")
        if kind and name in (kind, f"{title.split()[0]}.{kind}"):
            lines = [line for s in settings if wanted(s.name) for line in setting_lines(s, width)]
            return "\n".join([f"{title}: {about}", *lines]) + "\n"
    if name in {setting.split(".")[0] for setting in names}:
        return settings_text(lambda setting: setting.split(".")[0] == name and wanted(setting), width)
    if name in names:
        return _setting_text(name, width)
    hint = meant_by(name, sorted(names)) or _close(name, names)
    raise TbaError(f"there is no section or setting {topic!r}: {hint}`tba {command} --help` lists the sections")


def _setting_text(name: str, width: int) -> str:
    """One setting; of kinds that differ in it, each of its forms once."""
    forms: dict[Setting, list[str]] = {}
    for title, _, settings in sections():
        for setting in settings:
            if setting.name == name:
                forms.setdefault(setting, []).append(title.partition("kind = ")[2].rstrip(")"))
    lines = []
    for setting, kinds in forms.items():
        first, *rest = setting_lines(setting, width)
        lines += [first + (f"  ({', '.join(kinds)})" if len(forms) > 1 else ""), *rest]
    return "\n".join(lines) + "\n"


def _close(name: str, names: set[str]) -> str:
    words = {setting.split(".")[0] for setting in names}
    close = get_close_matches(name, sorted(words), 1)
    return f"did you mean {close[0]}? " if close else ""


def _taken(command: Command, is_taken: IsTaken) -> IsTaken:
    chosen = command.sections
    return lambda setting: (chosen is None or setting.split(".")[0] in chosen) and is_taken(setting)


def _overview(name: str, command: Command, wanted: IsTaken, width: int) -> Iterator[str]:
    settings: dict[str, Setting] = {}
    for _, _, listed in sections():
        for setting in listed:
            if wanted(setting.name):
                settings.setdefault(setting.name, setting)
    yield "the settings that are used most:"
    for used in command.used_most:
        described = settings[used]
        flag = f"--{_SHORTHANDS[used]}" if used in _SHORTHANDS else described.flag
        default = f" [{described.default}]" if described.default else ""
        yield from _two_columns(flag + default, described.meaning.split(". ")[0].rstrip(".") + ".", width, shorten=True)
    yield ""
    yield f"sections of settings (tba {name} --help SECTION, tba {name} --help SECTION.KEY):"
    abouts: dict[str, list[str]] = {}
    for title, about, listed in sections():
        if any(wanted(one.name) for one in listed):
            abouts.setdefault(title.split()[0], []).append(about)
    for section, told in abouts.items():
        text = told[0].split(". ")[0].rstrip(".") + "."
        if len(told) > 1:
            text = f"Each kind has its own: {', '.join(_kinds(section))}."
        yield from _two_columns(section, text, width, 14, shorten=True)
    yield f"tba {name} --help {ALL} lists all {len(settings)} settings."


def _kinds(section: str) -> list[str]:
    titles = (title for title, _, _ in sections() if title.startswith(f"{section} "))
    return [title.partition("kind = ")[2].rstrip(")") for title in titles]


def _two_columns(left: str, right: str, width: int, column: int = _COLUMN, *, shorten: bool = False) -> Sequence[str]:
    room = max(20, width - column - 2)
    lines = [textwrap.shorten(right, room, placeholder=" …")] if shorten else textwrap.wrap(right, room)
    first = f"  {left:<{column}}" if len(left) < column else f"  {left}\n{'':<{column + 2}}"
    return [first + lines[0], *(" " * (column + 2) + line for line in lines[1:])]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _width() -> int:
    return max(60, min(_MAX_WIDTH, shutil.get_terminal_size((_MAX_WIDTH, 40)).columns))
