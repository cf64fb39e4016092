"""Where rows of people's data have the prompt and the answer: columns go by several names.

A name may lead into a column that holds an object, as `reward_model.ground_truth` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tba.tasks.read_data import Row
from tba.types import TbaError

CONVERSATION = "messages"
"""A column with a whole conversation. If the assistant has its last turn, that turn is the answer and no prompt."""
PROMPTS = ("prompt", "question", CONVERSATION)
ANSWERS = ("answer", "solution", "ground_truth", "reward_model.ground_truth", "label")
"""Names by which columns are known, the preferred one first."""
MISSING: Any = object()


@dataclass(frozen=True)
class Columns:
    """The columns of one file or dataset."""

    prompt: str
    required: Mapping[str, str]
    """By the name that reward functions ask for: columns that the user has mapped to it. Every row must have them."""
    optional: Mapping[str, str]
    """Likewise, as far as rows have them."""
    note: str
    """What was found out and not said by the user, as a sentence; empty if there is nothing to tell."""

    def extra(self, row: Row, place: str) -> dict[str, Any]:
        """What the row has under other names than its own."""
        found = {name: value_at(row, column) for name, column in {**self.optional, **self.required}.items()}
        for name, column in self.required.items():
            if found[name] is MISSING:
                raise TbaError(
                    f"{place} has no column {column!r}, which task.columns names for {name!r}: name one of "
                    f"{', '.join(row)}"
                )
        return {name: value for name, value in found.items() if value is not MISSING}


def find_columns(rows: Sequence[Row], source: str, prompt_column: str, mapped: Mapping[str, str]) -> Columns:
    """The user's choices, and for the rest the first known names that any row has."""
    prompt = prompt_column or _first(PROMPTS, rows) or PROMPTS[0]
    optional: dict[str, str] = {}
    answer = None if ANSWERS[0] in mapped else _first(ANSWERS, rows)
    if answer is not None and answer != ANSWERS[0]:
        optional[ANSWERS[0]] = answer
    said = []
    if prompt not in (prompt_column, PROMPTS[0]):
        said.append(f"prompts come from the column `{prompt}`")
    if optional:
        said.append(f"{'answers' if said else 'answers come'} from the column `{answer}`")
    if prompt == CONVERSATION and answer is None and ANSWERS[0] not in mapped:
        said.append("a last turn of the assistant is cut off from the prompt and is the answer")
    note = f"{source}: {', '.join(said)}" if said else ""
    return Columns(prompt, dict(mapped), optional, note)


def value_at(row: Row, column: str) -> Any:
    """What a row has in a column, or within it; MISSING if it has none."""
    if column in row:
        return row[column]
    outer, dot, inner = column.partition(".")
    value = row.get(outer)
    return value_at(value, inner) if dot and isinstance(value, dict) else MISSING


def _first(names: Sequence[str], rows: Sequence[Row]) -> str | None:
    return next((name for name in names if any(value_at(row, name) is not MISSING for row in rows)), None)
