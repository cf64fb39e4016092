"""Finds the reward functions a user names, and calls them by TRL's convention.

A reward function takes `prompts`, `completions`, `completion_ids`, `finished` (the completion ended by itself) and the
columns of the data, all as keywords and as lists with one entry for each completion, and returns a list of numbers,
with None for "not applicable". It may be `async`. With `log_extra(column, values)` it may note further values, one for
each completion, and with `log_metric(name, value)` report a number about the group. What it returns is checked
elsewhere (`scoring`), and so is how long it takes (`process`).

A module of reward functions may have a `warm_up_rewards()`, called once in each reward process before its first
request: the place to import what only some answers need, since the first of them would hold up a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tba.types import TbaError

RewardFunction = Callable[..., Any]
Run = Callable[[Coroutine[Any, Any, Any]], Any]

STANDARD_KEYWORDS = ("prompts", "completions", "completion_ids", "finished", "log_extra", "log_metric")


@dataclass(frozen=True)
class RewardFactory:
    """A reward with settings, made in the reward process: there it may load models."""

    path: str
    """Import path of what is called with the settings and returns the reward function."""
    settings: Mapping[str, Any]
    """Plain data: it travels to the reward process."""


RewardSpec = str | RewardFactory


def resolve(spec: RewardSpec) -> RewardFunction:
    """The function that `module:function`, `file.py:function` or `module.function` names, or that a factory makes.

    TbaError says which part is at fault.
    """
    if isinstance(spec, RewardFactory):
        made: RewardFunction = _find(spec.path)(**spec.settings)
        return made
    function = _find(spec)
    if inspect.isclass(function):
        raise TbaError(f"reward {spec!r} is a class: name a function, or an instance that can be called")
    if not callable(function):
        raise TbaError(f"reward {spec!r} is of type {type(function).__name__}: name a function")
    return function  # type: ignore[no-any-return]


def _find(spec: str) -> Any:
    source, attribute = _split(spec)
    module = _load_file(spec, Path(source)) if source.endswith(".py") else _load_module(spec, source)
    function: Any = module
    for name in attribute.split("."):
        if not hasattr(function, name):
            raise TbaError(f"reward {spec!r}: {source} has no {attribute!r}: check the name{_suggest(module)}")
        function = getattr(function, name)
    return function


def check_importable(spec: str) -> None:
    """Raise TbaError now rather than in a process started later. Imports the user's module."""
    resolve(spec)


def check_columns(spec: str, columns: Collection[str]) -> None:
    """Raise TbaError if the function requires a column the data does not have."""
    known = {*STANDARD_KEYWORDS, *columns}
    for parameter in _parameters(resolve(spec)):
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and parameter.name not in known:
            raise TbaError(
                f"reward {spec!r} asks for {parameter.name!r}, which the data has no column for: "
                f"rename one of them (columns: {', '.join(sorted(columns)) or 'none'})"
            )


def name_of(function: RewardFunction) -> str:
    """The name metrics use: that of the function, of what a partial wraps, or of a callable object's class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


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


def call(function: RewardFunction, keywords: Mapping[str, Any], run: Run = asyncio.run) -> Any:
    """Call with the keywords the function accepts. `run` finishes the coroutine of an `async` function."""
    result = function(**_accepted(function, keywords))
    # The result is asked, not the function: a partial or a callable object hides that it is async.
    return run(_finish(result)) if inspect.isawaitable(result) else result


def describe(error: BaseException) -> str:
    """One line: the type, the message and the place."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):  # a SyntaxError's message names the place itself
        return message
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


async def _finish(result: Awaitable[Any]) -> Any:
    return await result


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


def _split(spec: str) -> tuple[str, str]:
    is_bare_file = spec.endswith(".py") and ":" not in spec
    source, _, attribute = spec.rpartition(":" if ":" in spec else ".")
    if not source or not attribute or is_bare_file:
        raise TbaError(f"reward {spec!r} names no function: write module:function or file.py:function")
    return source, attribute


def _load_module(spec: str, name: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(spec, error) from error
        raise TbaError(
            f"reward {spec!r}: no module named {error.name!r}: check the spelling, or start from the folder it is in"
        ) from None
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        raise _import_failed(spec, error) from error


def _load_file(spec: str, path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise TbaError(f"reward {spec!r}: no file at {path}: check the path")
    _make_importable(os.getcwd())
    _make_importable(str(path.parent))
    name = f"tba_reward:{path}"  # two files of the same name are two modules
    if name in sys.modules:
        return sys.modules[name]
    described = importlib.util.spec_from_file_location(name, path)
    assert described is not None
    assert described.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(described)
    try:
        described.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        del sys.modules[name]
        raise _import_failed(spec, error) from error
    return module


def _make_importable(folder: str) -> None:
    """Put the folder first on the path, as `python -m` does with the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _import_failed(spec: str, error: BaseException) -> TbaError:
    return TbaError(f"reward {spec!r} cannot be imported: {describe(error)}")


def _suggest(module: ModuleType) -> str:
    functions = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return f" (it has {', '.join(functions[:5])})" if functions else ""
