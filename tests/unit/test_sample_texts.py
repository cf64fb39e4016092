"""Texts of models and data as people see them: nothing a terminal obeys, nothing hidden, nothing without end."""

from __future__ import annotations

import datetime
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.samples.bounded import MAX_OBJECT, MAX_VALUE, bounded_json, messages_json
from tba.samples.text import one_line, printable, shortened, visible

ANY_TEXT = st.text(st.characters(), max_size=200)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(ANY_TEXT)
def test_what_is_shown_can_be_printed(text: str) -> None:
    shown = visible(text)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert shown.count("\n") == text.count("\n")
    assert one_line(text).isprintable()
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb\x07", "a\\rb\\x07"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\ud800", "\\ud800"),
        ("a\tb\u3000c", "a    b c"),
        ("naïve 東京 🗼", "naïve 東京 🗼"),
    ],
)
def test_control_characters_are_written_out(hostile: str, shown: str) -> None:
    assert visible(hostile) == shown


@given(ANY_TEXT, st.integers(1, 60))
def test_a_text_is_cut_in_the_middle(text: str, limit: int) -> None:
    cut = shortened(text, limit)
    if len(text) <= limit:
        assert cut == text
        return
    head, _, tail = cut.partition(f" [… {len(text) - limit:,} characters left out …] ")
    assert len(head) + len(tail) == limit
    assert text.startswith(head)
    assert text.endswith(tail)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5))
def test_small_values_are_kept_as_they_are(values: dict[str, Any]) -> None:
    assert json.loads(bounded_json(values)) == values


@given(st.lists(st.integers(0, 3 * MAX_VALUE), max_size=60), st.integers(500, MAX_OBJECT))
def test_the_whole_has_a_bounded_size(lengths: list[int], room: int) -> None:
    text = bounded_json({f"column {i}": "x" * length for i, length in enumerate(lengths)}, room)
    found = json.loads(text)
    assert len(text) < room + 30 * len(found) + 100, "names, quotation marks and notes come on top"
    assert len(found) == len(lengths) or "more left out" in found["…"]


def test_a_large_value_leaves_room_for_others() -> None:
    found = json.loads(bounded_json({"tests": ["assert f(1)"] * 10_000, "answer": "4"}))
    assert found["answer"] == "4"
    assert found["tests"].startswith('["assert f(1)", ')
    assert "characters left out" in found["tests"]


class Odd:
    def __str__(self) -> str:
        raise RuntimeError("never printed")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (math.nan, None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        ((1, 2), [1, 2]),
        ({1: {2}}, {"1": "{2}"}),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (b"\x00", "b'\\x00'"),
        ("\ud800", "\ud800"),
        (Odd(), "a Odd"),
    ],
)
def test_what_json_does_not_know_becomes_text(value: Any, kept: Any) -> None:
    text = bounded_json({"column": value})
    text.encode("utf-8")
    assert json.loads(text) == {"column": kept}


def test_messages_of_a_chat_are_kept_and_a_text_has_none() -> None:
    chat = [{"role": "user", "content": "2+2?"}]
    assert json.loads(messages_json(chat) or "") == chat
    assert messages_json("2+2?") is None
