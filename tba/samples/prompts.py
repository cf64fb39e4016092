"""Finds the prompt that a word of the command line means: by its id, or by a text that is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tba.buffer.browse import Piece
from tba.samples.text import one_line, shortened
from tba.types import TbaError

_MAX_NAMED = 5


def matching(pieces: Sequence[Piece], wanted: str) -> str:
    """The id of the one prompt that has this id, is this text or, without regard to case, holds it. TbaError if none
    does, or several do."""
    if any(wanted in pc.unique(piece.read(("prompt_id",))["prompt_id"]).to_pylist() for piece in pieces):
        return wanted
    found: dict[str, str] = {}
    for piece in pieces:
        table = piece.read(("prompt_id", "prompt"))
        table = table.filter(pc.match_substring(table["prompt"], wanted, ignore_case=True))
        found.update(_prompts(table))
    if not found:
        raise TbaError(f"no prompt has the id {wanted!r} or holds this text: tba samples --json shows ids and prompts")
    whole = [name for name, text in found.items() if text.strip() == wanted.strip()]
    if len(whole) == 1:
        return whole[0]
    if len(found) > 1:
        some = [f"{name} ({_around(text, wanted)})" for name, text in list(found.items())[:_MAX_NAMED]]
        more = f" and {len(found) - _MAX_NAMED:,} more" if len(found) > _MAX_NAMED else ""
        raise TbaError(f"{len(found):,} prompts hold {wanted!r}: name one by its id: {', '.join(some)}{more}")
    return next(iter(found))


def _prompts(table: pa.Table) -> dict[str, str]:
    """By id, each once."""
    first = table.group_by("prompt_id", use_threads=False).aggregate([("prompt", "first")])
    ids: list[Any] = first["prompt_id"].to_pylist()
    return dict(zip(ids, first["prompt_first"].to_pylist(), strict=True))


def _around(text: str, wanted: str) -> str:
    """The part of a prompt that holds the text."""
    place = max(0, text.lower().find(wanted.lower()))
    return shortened(one_line(text[max(0, place - 20) : place + len(wanted) + 30]), 80)
