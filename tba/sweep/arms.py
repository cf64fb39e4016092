"""The arms of a sweep: combinations of settings, all of a grid or some at random, each with a name that says it."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash

from tba.seeds import Purpose, generator
from tba.types import TbaError

VARIANT = "variant"
_RANGE = {"low", "high", "log"}
_LONGEST_NAME = 100
_TRIES_PER_ARM = 100


@dataclass(frozen=True)
class Arm:
    """One combination: settings by their dotted names, and a name that can be that of a folder."""

    name: str
    settings: Mapping[str, Any]
    """What arms differ in. Where there are variants, `variant` is among them, with the name of one."""
    variant: Mapping[str, Any] = field(default_factory=dict)
    """The settings of its variant, by section."""

    @property
    def changes(self) -> dict[str, Any]:
        """Its settings over those of all arms, by section."""
        return nested({**self.variant, **{name: value for name, value in self.settings.items() if name != VARIANT}})


@dataclass(frozen=True)
class Range:
    """Numbers between two, uniform or uniform in the logarithm; whole numbers if both ends are."""

    low: float
    high: float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        if isinstance(self.low, int) and isinstance(self.high, int) and not self.log:
            return int(rng.integers(self.low, self.high + 1))
        if self.log:
            drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            drawn = rng.uniform(self.low, self.high)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return round(drawn)
        # Four digits can be read and typed again, and the rounded number is the one that is run.
        return min(max(float(f"{drawn:.4g}"), self.low), self.high)


Choice = Sequence[Any] | Range
Space = Mapping[str, Choice]
"""Settings by their dotted names: a list of values, or a range."""


def read_space(given: Mapping[str, Any]) -> Space:
    """The section `[space]`. TbaError names the entry that is neither a list nor a range."""
    space: dict[str, Choice] = {}
    for name, value in _leaves(given, ""):
        if name in space:
            raise TbaError(f"space.{name} is there twice: keep one of the two")
        space[name] = _range(name, value) if isinstance(value, Mapping) else _list(name, value)
    return space


def grid(space: Space) -> list[Arm]:
    """Every combination of the values, the last setting changing fastest. An empty space has one arm."""
    ranges = [name for name, choice in space.items() if isinstance(choice, Range)]
    if ranges:
        raise TbaError(
            f"space.{ranges[0]} is a range, which a grid cannot run through: list its values, or set "
            "sweep.method = 'random'"
        )
    values = itertools.product(*(choice for choice in space.values() if not isinstance(choice, Range)))
    return [_arm(dict(zip(space, combination, strict=True))) for combination in values]


def random_arms(space: Space, count: int, seed: int) -> list[Arm]:
    """So many different combinations. A larger count has those of a smaller one first."""
    rng = generator(Purpose.SWEEP_ARMS, seed)
    found: dict[str, Arm] = {}
    for _ in range(_TRIES_PER_ARM * count):
        arm = _arm({name: _draw(choice, rng) for name, choice in space.items()})
        found.setdefault(arm.name, arm)
        if len(found) == count:
            return list(found.values())
    raise TbaError(f"sweep.num_arms = {count}, but [space] has only about {len(found)} combinations: ask for fewer")


def with_variants(space: Space, variants: Mapping[str, Mapping[str, Any]]) -> Space:
    """The space with the variants' names as its first axis, if there are any."""
    if VARIANT in space:
        raise TbaError(f"space.{VARIANT} is no setting: name variants in [variants]")
    return {VARIANT: list(variants), **space} if variants else space


def resolved(arm: Arm, variants: Mapping[str, Mapping[str, Any]]) -> Arm:
    """The arm with the settings of its variant."""
    return replace(arm, variant=variants[arm.settings[VARIANT]]) if variants else arm


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` to `{"a": {"b": 1}}`, which is how settings are layered."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        inner = found
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise TbaError(f"{part} is given as one value and {name} beside it: write both as {part}.key")
        both = isinstance(inner.get(last), dict) and isinstance(value, Mapping)
        inner[last] = {**inner[last], **value} if both else dict(value) if isinstance(value, Mapping) else value
    return found


def short_names(settings: Mapping[str, Any]) -> dict[str, str]:
    """By dotted name, its last part; the whole where two settings end alike."""
    ends = [name.rpartition(".")[2] for name in settings]
    return {name: end if ends.count(end) == 1 else name for name, end in zip(settings, ends, strict=True)}


def shown(value: Any) -> str:
    """A value of a setting as one would write it."""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False, default=str)


def _leaves(given: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    """Lists and ranges by their dotted names. TOML reads `a.b = […]` as a table within a table."""
    found = []
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not set(value) & _RANGE:
            found += _leaves(value, f"{name}.")
        else:
            found.append((name, value))
    return found


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TbaError(f"space.{name} = {value!r} is one value: move it to [settings], or give a list of values")
    if not value:
        raise TbaError(f"space.{name} is an empty list: give it values, or leave it out")
    if len({json.dumps(part, default=str) for part in value}) < len(value):
        raise TbaError(f"space.{name} has a value twice: keep one of the two")
    return value


def _range(name: str, value: Mapping[str, Any]) -> Range:
    low, high, log = value.get("low"), value.get("high"), value.get("log", False)
    numbers = all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in (low, high))
    if set(value) - _RANGE or not numbers or not isinstance(log, bool):
        raise TbaError(f"space.{name} is no range: write {{low = 1e-5, high = 1e-3, log = true}}, or a list of values")
    assert low is not None  # by `numbers`
    assert high is not None
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
        raise TbaError(f"space.{name} needs low < high, and low > 0 where log is true: {low} and {high} are given")
    return Range(low, high, log)


def _draw(choice: Choice, rng: np.random.Generator) -> Any:
    return choice.draw(rng) if isinstance(choice, Range) else choice[int(rng.integers(len(choice)))]


def _arm(settings: Mapping[str, Any]) -> Arm:
    """Named by its values, so that an arm keeps its runs when values are added to the space."""
    short = short_names(settings)
    exact = ",".join(f"{short[name]}={shown(value)}" for name, value in settings.items()) or "base"
    name = re.sub(r"[^\w.,=+-]", "_", exact)[:_LONGEST_NAME]
    if name != exact:  # two that differ must not become one
        name = f"{name}-{xxhash.xxh3_64_hexdigest(exact.encode())[:6]}"
    return Arm(name, settings)
