"""Finds code that a user names in a setting: in a module, or in a file, of the current folder too."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from tba.types import TbaError


def find(spec: str, what: str, kind: str = "function") -> Any:
    """What `module:name`, `file.py:name` or `module.name` names. TbaError says which part is at fault.

    `what` is the setting, and `kind` says what it should name.
    """
    source, attribute = _split(spec, what, kind)
    named = f"{what} {spec!r}"
    module = _load_file(named, Path(source)) if source.endswith(".py") else _load_module(named, source)
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise TbaError(f"{named}: {source} has no {attribute!r}: {_suggest(module, attribute, kind)}")
        found = getattr(found, name)
    return found


def describe(error: BaseException) -> str:
    """One line: the type, the message and the place."""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or isinstance(error, SyntaxError):  # a SyntaxError's message names the place itself
        return message
    return f"{message} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _split(spec: str, what: str, kind: str) -> tuple[str, str]:
    is_bare_file = spec.endswith(".py") and ":" not in spec
    source, _, attribute = spec.rpartition(":" if ":" in spec else ".")
    if not source or not attribute or is_bare_file:
        raise TbaError(f"{what} {spec!r} names no {kind}: write module:{kind} or file.py:{kind}")
    return source, attribute


def _load_module(named: str, name: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_failed(named, error) from error
        raise TbaError(
            f"{named}: no module named {error.name!r}: check the spelling, or start from the folder it is in"
        ) from None
    except (Exception, SystemExit) as error:  # a module may do anything while it is imported
        raise _import_failed(named, error) from error


def _load_file(named: str, path: Path) -> ModuleType:
    path = path.expanduser().resolve()
    if not path.is_file():
        raise TbaError(f"{named}: no file at {path}: check the path")
    _make_importable(os.getcwd())
    _make_importable(str(path.parent))
    name = f"tba_user_code:{path}"  # two files of the same name are two modules
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
        raise _import_failed(named, error) from error
    return module


def _make_importable(folder: str) -> None:
    """Put the folder first on the path, as `python -m` does with the current one."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _import_failed(named: str, error: BaseException) -> TbaError:
    return TbaError(f"{named} cannot be imported: {describe(error)}")


def _suggest(module: ModuleType, attribute: str, kind: str) -> str:
    """What was probably meant: the closest name, or those that there are."""
    wanted = inspect.isclass if kind == "Class" else callable
    own = [name for name, value in vars(module).items() if wanted(value) and _is_of(module, value)]
    close = get_close_matches(attribute, own, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"check the name (it has {', '.join(own[:5])}{', …' if len(own) > 5 else ''})" if own else "check the name"


def _is_of(module: ModuleType, value: Any) -> bool:
    """Whether a value was made in the module and not imported into it. An instance belongs where its class does."""
    return getattr(value, "__module__", None) == module.__name__
