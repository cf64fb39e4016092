"""What people shall read beside responses, as JSON of bounded size: columns of the data, notes of reward functions.

A value that is too long becomes a text that is cut in the middle. Nothing is trained on this, so it need not be exact.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tba.samples.text import shortened

MAX_VALUE = 2_000
"""Characters of one value."""
MAX_OBJECT = 16_000
"""Characters of all values of one object together."""
_LEAST, _DEEPEST = 80, 20


def bounded_json(values: Mapping[Any, Any], room: int = MAX_OBJECT) -> str:
    """A JSON object of these values, in their order. Those that come when the room is used up are only counted."""
    with suppress(TypeError, ValueError, RecursionError):
        text = _json(dict(values), allow_nan=False)
        if len(text) <= min(MAX_VALUE, room // 4):  # of most rows: nothing to look at one by one
            return text
    found: dict[str, Any] = {}
    for number, (name, value) in enumerate(values.items()):
        # Of the room that is left, so that one large value leaves some for those after it.
        value = bounded(value, max(_LEAST, min(MAX_VALUE, room // 4)))
        room -= len(str(name)) + len(_json(value))
        if room < 0:
            found["…"] = f"{len(values) - number} more left out"
            break
        found[shortened(str(name), MAX_VALUE)] = value
    return _json(found)


def bounded(value: Any, limit: int) -> Any:
    """The value as JSON has it; a text, cut in the middle, if it would be longer than `limit` characters."""
    if isinstance(value, str):  # most are, and need no copy to be measured
        return shortened(value, limit)
    plain = _plain(value)
    text = _json(plain)
    return plain if len(text) <= limit else shortened(text, limit)


def messages_json(content: Any) -> str | None:
    """The messages of a prompt that is a chat, as JSON; None for one that is text."""
    return None if isinstance(content, str) else _json(_plain(content))


def _json(value: Any, *, allow_nan: bool = True) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=allow_nan)
    # Half of a surrogate pair cannot be stored as it is. In JSON it can, written out.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _plain(value: Any, depth: int = 0) -> Any:
    """Of JSON's own types: numbers that it has no word for become null, all else becomes text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth < _DEEPEST and isinstance(value, Mapping):
        return {str(key): _plain(part, depth + 1) for key, part in value.items()}
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return [_plain(part, depth + 1) for part in value]
    try:
        number = value.item()  # a scalar of NumPy or torch
    except Exception:  # any object of the user's: whatever it does, it is to be named
        number = None
    if isinstance(number, (bool, int, float, str)):
        return _plain(number)
    try:
        return str(value)
    except Exception:  # likewise
        return f"a {type(value).__name__}"
