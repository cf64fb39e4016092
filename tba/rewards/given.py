"""Reward functions that other processes cannot import: of a notebook's cell, of a script on standard input, lambdas.

They travel by value, through the pipes of our own child processes and never through a file: what a file holds may come
from others. In the settings such a function has a name that only the session which gave it understands, so a resume
needs the function again. Its source is kept beside the run, for people to read.
"""

from __future__ import annotations

import contextlib
import inspect
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tba.types import TbaError

GIVEN = "<given>:"
"""How the name of such a function begins in the settings. No module is called so."""
SOURCES = "rewards"
"""The folder of a run with the sources, as text."""


@dataclass(frozen=True)
class GivenReward:
    """A function by value."""

    path: str
    """Its name in the settings."""
    code: bytes = field(repr=False)
    """As cloudpickle wrote it in this session."""
    source: str | None = field(repr=False)
    """None where Python does not know it."""

    def function(self) -> Callable[..., Any]:
        try:
            function: Callable[..., Any] = pickle.loads(self.code)
        except Exception as error:  # the user's objects: to make them again may fail in any way
            raise TbaError(
                f"reward {self.path!r} cannot be made again in its own process ({type(error).__name__}: {error}): "
                "put it into a file and import it from there"
            ) from error
        return function


_given: dict[str, GivenReward] = {}
"""Of this process: what its session has given, or what it was started with."""


def give(functions: Iterable[Callable[..., Any]]) -> Iterator[str]:
    """The names of functions in the settings of one run, by which this process knows them from now on."""
    taken: set[str] = set()
    for function in functions:
        stem = getattr(function, "__name__", type(function).__name__).strip("<>")
        names = (f"{GIVEN}{stem}" + (f"_{number}" if number > 1 else "") for number in range(1, 1000))
        path = next(name for name in names if name not in taken)
        taken.add(path)
        _given[path] = GivenReward(path, _by_value(function), _source(function))
        yield path


def find_given(path: str) -> GivenReward:
    """TbaError if another session gave it."""
    if path not in _given:
        name = path.removeprefix(GIVEN)
        raise TbaError(
            f"reward {path!r} was a function of the Python session that started the run: give it again with "
            f"tba.resume(RUN, reward={name}), or name one with --reward module:function (the folder "
            f"{SOURCES}/ of the run has its source)"
        )
    return _given[path]


def given_for(paths: Iterable[str]) -> tuple[GivenReward, ...]:
    """Those of a run's functions that are to travel with its settings."""
    return tuple(find_given(path) for path in paths if path.startswith(GIVEN))


def take(rewards: Iterable[GivenReward]) -> None:
    """Know these in this process, too."""
    _given.update({reward.path: reward for reward in rewards})


def keep_sources(run: Path, paths: Iterable[str]) -> None:
    """Write what is known of the functions' sources into the run's folder. Nothing reads them again."""
    for reward in given_for(paths):
        if reward.source is not None:
            (run / SOURCES).mkdir(exist_ok=True)
            name = reward.path.removeprefix(GIVEN)
            (run / SOURCES / f"{name}.py.txt").write_text(reward.source, "utf-8")


def _by_value(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    try:
        code: bytes = cloudpickle.dumps(function)
    except Exception as error:  # the user's objects: to pickle them may fail in any way
        raise TbaError(
            f"reward {getattr(function, '__name__', function)} cannot be sent to its own process "
            f"({type(error).__name__}: {error}): make what it uses within the function, or put it into a file"
        ) from error
    return code


def _source(function: Callable[..., Any]) -> str | None:
    with contextlib.suppress(OSError, TypeError):
        return inspect.getsource(function)
    return None
