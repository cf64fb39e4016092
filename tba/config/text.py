"""Settings as text: TOML in and out, and dotted overrides of the command line. Knows nothing of their meaning."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tba.types import TbaError

_SHORTHANDS = {"task": "kind", "model": "path", "reward": "functions"}
"""Sections that may be given as one value: the key that value stands for."""
NO_VALUE = "true"
"""What a flag without a value is taken for: a switch that is on."""


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--trainer.learning-rate 1e-6 --model=x` to a nested mapping. A flag with no value means true."""
    settings: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise TbaError(f"unexpected argument {flag!r}: settings look like --section.key value")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not _is_flag(rest[0]) else NO_VALUE
        _assign(settings, key.replace("-", "_").split("."), value)
    return settings


def to_toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections of plain values as TOML. What is None is left out."""
    lines: list[str] = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {_toml_value(value)}" for key, value in section.items() if value is not None]
        lines.append("")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(key)} = {_toml_value(part)}" for key, part in value.items() if part is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML wants this one escaped too


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise TbaError(f"no configuration file at {path}: check the path") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TbaError(f"{path} is not valid TOML: {error}") from None
    except OSError as error:
        raise TbaError(f"cannot read {path}: {error.strerror}") from None


def _is_flag(argument: str) -> bool:
    return argument.startswith("--") and len(argument) > 2 and argument[2].isalpha()


def _assign(settings: dict[str, Any], path: list[str], value: str) -> None:
    for name in path[:-1]:
        inner = settings.setdefault(name, {})
        if isinstance(inner, str):
            inner = settings[name] = expand(name, inner)
        settings = inner
    last = path[-1]
    if isinstance(settings.get(last), dict):
        settings[last] = {**settings[last], **expand(last, value)}
    else:
        settings[last] = value


def expand(section: str, value: str) -> dict[str, Any]:
    """The long form of a shorthand, so that `--task x --task.name y` adds up."""
    return {_SHORTHANDS.get(section, section): value}
