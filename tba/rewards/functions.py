"""Finds the reward functions a user names, and calls them by TRL's convention.

A reward function takes `prompts`, `completions`, `texts`, `completion_ids`, `finished` (the completion ended by itself)
and the columns of the data, all as keywords and as lists with one entry for each completion, and returns a list of
numbers, with None for "not applicable". `completions` of a chat prompt are lists of one message, as in TRL; `texts` are
always plain strings. `completions_ids`, as some versions of TRL's documentation spell it, is `completion_ids`.
`trainer_state` says where the run stands (`global_step`, `max_steps`). A function may be `async`:
then several groups are scored at the same time. With `log_extra(column, values)` it may note further values, one for
each completion, and with `log_metric(name, value)` report a number about the group. What it returns is checked
elsewhere (`scoring`), and so is how long it takes (`process`).

A module of reward functions may have a `warm_up_rewards()`, called once in each reward process before its first
request: the place to import what only some answers need, since the first of them would hold up a batch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from tba.config.user_code import find
from tba.rewards.given import GIVEN, GivenReward, find_given
from tba.types import TbaError

RewardFunction = Callable[..., Any]

STANDARD_KEYWORDS = (
    *("prompts", "completions", "texts", "completion_ids", "completions_ids", "finished"),
    *("trainer_state", "log_extra", "log_metric"),
)


@dataclass(frozen=True)
class RewardFactory:
    """A reward with settings, made in the reward process: there it may load models."""

    path: str
    """Import path of what is called with the settings and returns the reward function."""
    settings: Mapping[str, Any]
    """Plain data: it travels to the reward process."""


RewardSpec = str | RewardFactory | GivenReward


def resolve(spec: RewardSpec) -> RewardFunction:
    """The function that `module:function`, `file.py:function` or `module.function` names, or that a factory makes,
    or that was given by value.

    TbaError says which part is at fault.
    """
    if isinstance(spec, RewardFactory):
        made: RewardFunction = find(spec.path, "reward")(**spec.settings)
        return made
    if isinstance(spec, GivenReward):
        return _checked(spec.function(), spec.path)
    if spec.startswith(GIVEN):
        return resolve(find_given(spec))
    return _checked(find(spec, "reward"), spec)


def shipped(spec: RewardSpec) -> RewardSpec:
    """As it travels to a process that knows nothing of this one."""
    return find_given(spec) if isinstance(spec, str) and spec.startswith(GIVEN) else spec


def _checked(function: Any, spec: str) -> RewardFunction:
    if inspect.isclass(function):
        raise TbaError(f"reward {spec!r} is a class: name a function, or an instance that can be called")
    if not callable(function):
        raise TbaError(f"reward {spec!r} is of type {type(function).__name__}: name a function")
    return function  # type: ignore[no-any-return]


def check_importable(spec: str) -> None:
    """Raise TbaError now rather than in a process started later. Imports the user's module."""
    resolve(spec)


def check_columns(spec: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise TbaError if the function requires a column that some rows of the data do not have."""
    for parameter in _parameters(resolve(spec)):
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not named or parameter.default is not parameter.empty or parameter.name in STANDARD_KEYWORDS:
            continue
        num_without = sum(parameter.name not in row for row in rows)
        if num_without:
            columns = sorted({column for row in rows for column in row})
            who = "the data has" if num_without == len(rows) else f"{num_without} of the {len(rows)} rows have"
            close = get_close_matches(parameter.name, [*STANDARD_KEYWORDS, *columns], 1)
            advice = f"did you mean {close[0]!r}?" if close else "rename the parameter, or map it with task.columns"
            raise TbaError(
                f"reward {spec!r} asks for {parameter.name!r}, which {who} no column for: {advice} "
                f"(columns: {', '.join(columns) or 'none'})"
            )


def check_column_names(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise TbaError if a column has the name of something that every reward function is given anyway."""
    for name in STANDARD_KEYWORDS:
        if any(name in row for row in rows):
            raise TbaError(f"the data has a column {name!r}, a name that reward functions know already: rename it")


def is_async(function: RewardFunction) -> bool:
    """Whether calling it gives a coroutine. A wrapper that hides this from Python counts as not."""
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def name_of(function: RewardFunction) -> str:
    """The name metrics use: that of the function, of what a partial wraps, or of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name.strip("<>") if isinstance(name, str) else type(function).__name__


def names_of(functions: Iterable[RewardFunction]) -> tuple[str, ...]:
    """Names as `name_of` gives them, with `_2`, `_3` after those already taken."""
    names: list[str] = []
    for name in map(name_of, functions):
        number, unique = 1, name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names.append(unique)
    return tuple(names)


def warm_up(functions: Iterable[RewardFunction]) -> None:
    """Call what the functions' modules have for it. What fails now is reported by the request that needs it."""
    modules = dict.fromkeys(getattr(function, "__module__", "") for function in functions)
    for name in modules:
        with contextlib.suppress(Exception):
            getattr(sys.modules.get(name), "warm_up_rewards", _nothing)()


def _nothing() -> None: ...


def call(function: RewardFunction, keywords: Mapping[str, Any]) -> Any:
    """Call with the keywords the function accepts. What an `async` function gives back is to be awaited."""
    return function(**_accepted(function, keywords))


def _parameters(function: RewardFunction) -> list[inspect.Parameter]:
    """Its parameters; a signature Python cannot see counts as `**kwargs`."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]


def _accepted(function: RewardFunction, keywords: Mapping[str, Any]) -> dict[str, Any]:
    parameters = _parameters(function)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(keywords)
    names = {parameter.name for parameter in parameters}
    return {name: value for name, value in keywords.items() if name in names}
