"""Finds the responses that a query asks for in the rollout log of a run. Reads only, and no more than it needs.

First it looks at a few narrow columns: for the newest responses, of the newest files only. Then it reads the responses
that were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tba.buffer.browse import GROUP, Piece, group_numbers, holding, pieces_of
from tba.samples.load import load
from tba.samples.prompts import matching
from tba.samples.query import Query
from tba.samples.sample import LoggedSample
from tba.types import TbaError, Version

_MAX_LOOKS = 3
"""How often the log is looked through from the start: its files may be joined while they are read."""
_TEXTS_AT_ONCE = 64
_MAX_TEXTS = 4096
"""Responses that are read to find a few that differ."""
_NARROW = (*GROUP, "prompt_id", "epoch", "version", "reward")


@dataclass(frozen=True)
class Rows:
    """Rows that meet the conditions, in the order of the log, by the columns that choices are made by."""

    numbers: NDArray[np.int64]
    rewards: NDArray[np.float64]
    prompt_ids: NDArray[np.object_]
    epochs: NDArray[np.int64]
    steps: NDArray[np.int64]
    """With the epoch, the version of the weights that made it."""
    begins_group: NDArray[np.bool_]
    """Whether a row is the first of its group that meets the conditions."""

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Overview:
    """What the log holds."""

    num_responses: int
    oldest: Version
    newest: Version


@dataclass(frozen=True)
class Found:
    overview: Overview
    samples: list[LoggedSample]
    """Newest, best or worst first; of one prompt, oldest first unless the best or the worst are asked for."""
    of_prompt: Rows | None
    """All that there is of the prompt, if one was asked for."""


def find(run: Path, log: Path, query: Query) -> Found:
    """TbaError if there is nothing, or the log cannot be read."""
    for look in range(_MAX_LOOKS):
        try:
            return _find(run, log, query)
        except TbaError:
            if look == _MAX_LOOKS - 1:
                raise
    raise AssertionError


def _find(run: Path, log: Path, query: Query) -> Found:
    pieces = pieces_of(log)
    if not pieces:
        raise TbaError(f"{run} has no responses yet: they are written down when the Trainer takes the first groups")
    prompt_id = None if query.prompt is None else matching(pieces, query.prompt)
    of_prompt = None
    if prompt_id is None and query.order == "newest":
        numbers = _newest(pieces, query)
    else:
        rows = _joined([_rows_of(piece, query, prompt_id) for piece in pieces])
        of_prompt = rows if prompt_id is not None else None
        numbers = _over_time(rows, query.num) if query.order == "newest" else _extreme(pieces, rows, query)
    if not numbers:
        everything = _joined([_rows_of(piece, replace(query, steps=None), prompt_id) for piece in pieces])
        raise TbaError(_nothing(run, np.unique(everything.steps).tolist(), query))
    return Found(_overview(pieces), load(run, pieces, numbers), of_prompt)


def _rows_of(piece: Piece, query: Query, prompt_id: str | None = None) -> Rows:
    table = piece.read(_NARROW)
    groups = group_numbers(table)
    prompt_ids = table["prompt_id"].to_numpy(zero_copy_only=False)
    wanted = np.ones(table.num_rows, np.bool_) if prompt_id is None else prompt_ids == prompt_id
    steps = table["version"].to_numpy()
    if query.steps is not None:
        wanted &= (steps >= query.steps.first) & (steps <= (query.steps.last or 0))
    here = np.flatnonzero(wanted)
    return Rows(
        piece.first_row + here,
        table["reward"].to_numpy()[here],
        prompt_ids[here],
        table["epoch"].to_numpy()[here],
        steps[here],
        np.diff(groups[here], prepend=-1) != 0,
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    return Rows(
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.rewards for part in parts]),
        np.concatenate([part.prompt_ids for part in parts]),
        np.concatenate([part.epochs for part in parts]),
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.begins_group for part in parts]),
    )


def _newest(pieces: Sequence[Piece], query: Query) -> list[int]:
    """One response of each of the newest groups, the newest first. Which one does not depend on its reward."""
    numbers: list[int] = []
    for piece in reversed(pieces):
        rows = _rows_of(piece, query)
        numbers += reversed(rows.numbers[rows.begins_group].tolist())
        if len(numbers) >= query.num:
            break
    return numbers[: query.num]


def _over_time(rows: Rows, num: int) -> list[int]:
    """One response of each of some groups, from the first to the newest, evenly."""
    firsts = rows.numbers[rows.begins_group]
    if not len(firsts):
        return []
    places = np.unique(np.linspace(0, len(firsts) - 1, min(num, len(firsts))).round().astype(int))
    numbers: list[int] = firsts[places].tolist()
    return numbers


def _extreme(pieces: Sequence[Piece], rows: Rows, query: Query) -> list[int]:
    """The responses of highest or lowest reward, newer ones first among equals, and no text twice. Each is of another
    prompt, as far as there are prompts."""
    sign = -1 if query.order == "best" else 1
    order = np.lexsort((-rows.numbers, sign * rows.rewards))
    _, first_places = np.unique(rows.prompt_ids[order].astype(str), return_index=True)
    firsts = np.sort(first_places)
    others = np.setdiff1d(np.arange(len(order)), firsts)
    numbers = _distinct(pieces, rows.numbers[order[firsts]], query.num)
    numbers += _distinct(pieces, rows.numbers[order[others]], query.num - len(numbers), taken=numbers)
    place_of = {number: place for place, number in enumerate(rows.numbers[order].tolist())}
    return sorted(numbers, key=place_of.__getitem__)


def _distinct(pieces: Sequence[Piece], numbers: NDArray[np.int64], num: int, taken: Sequence[int] = ()) -> list[int]:
    """The first rows of these, as many as asked for, whose prompts and responses are not those of another. More and
    more rows are read at a time, up to a limit: late in a run nearly all responses may be the same."""
    seen = set(_texts_of(pieces, taken))
    found: list[int] = []
    start, at_once = 0, max(_TEXTS_AT_ONCE, 2 * num)
    while len(found) < num and start < min(len(numbers), max(_MAX_TEXTS, 16 * num)):
        part = numbers[start : start + at_once].tolist()
        for number, text in zip(part, _texts_of(pieces, part), strict=True):
            if text not in seen and len(found) < num:
                seen.add(text)
                found.append(number)
        start, at_once = start + at_once, 4 * at_once
    return found


def _texts_of(pieces: Sequence[Piece], numbers: Sequence[int]) -> list[tuple[str, str]]:
    """(prompt's id, response) of each row."""
    found: dict[int, tuple[str, str]] = {}
    for piece, here in holding(pieces, numbers):
        table = piece.read(("prompt_id", "response")).take(here - piece.first_row)
        found.update(zip(here.tolist(), zip(*table.to_pydict().values(), strict=True), strict=True))
    return [found[number] for number in numbers]


def _overview(pieces: Sequence[Piece]) -> Overview:
    last = pieces[-1]
    return Overview(last.first_row + last.num_rows, min(_versions(pieces[0])), max(_versions(last)))


def _versions(piece: Piece) -> list[Version]:
    table = piece.read(("epoch", "version"))
    columns: list[list[Any]] = [table[name].to_pylist() for name in ("epoch", "version")]
    return [Version(*pair) for pair in set(zip(*columns, strict=True))]


def _nothing(run: Path, steps: Sequence[int], query: Query) -> str:
    """Why nothing was found: there are no such steps among those that made something."""
    asked = query.steps
    assert asked is not None
    near = [*[step for step in steps if step < asked.first][-1:], *[step for step in steps if step > asked.first][:1]]
    which = f"step {asked.first}" if asked.first == asked.last else f"steps {asked.first} to {asked.last}"
    these = f"step{'s' if len(near) > 1 else ''} {' and '.join(map(str, near))}"
    what = "responses" if query.prompt is None else "responses to this prompt"
    return f"{run} has no {what} made by weights of {which}: the nearest weights that made some are of {these}"
