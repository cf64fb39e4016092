"""Slots against a plain list of every response's tokens: whatever is drawn, each must continue its own prefix."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.engines.bands import _seats
from tba.engines.branches import Branches


@settings(deadline=None, max_examples=150)
@given(num_prompts=st.integers(1, 5), num_responses=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_every_response_continues_its_own_prefix(num_prompts: int, num_responses: int, seed: int) -> None:
    """Also with prompts that begin while others are under way."""
    rng = np.random.default_rng(seed)
    branches = Branches()
    tokens: dict[int, tuple[int, ...]] = {}
    slots: list[tuple[int, ...]] = []  # what a decoder would hold: the prompt and the tokens so far
    for step in range(8):
        if rng.random() < 0.5 or step == 0:
            first = len(tokens)
            prompt = np.repeat(np.arange(num_prompts), num_responses)
            branches.begin(first + np.arange(len(prompt)), prompt)
            tokens |= {first + i: (-1 - first - g,) for i, g in enumerate(prompt.tolist())}
            slots += [(-1 - first - g,) for g in range(num_prompts)]
        drawn = rng.integers(0, rng.integers(1, 4), len(branches.active_A))
        ended = rng.random(len(drawn)) < 0.15
        branches.finish(ended)
        for n, token in zip(branches.active_A.tolist(), drawn[~ended].tolist(), strict=True):
            tokens[n] += (token,)
        token_R, sources_R = branches.extend(drawn[~ended])
        slots = [(*slots[source], token) for source, token in zip(sources_R.tolist(), token_R.tolist(), strict=True)]
        assert [slots[slot] for slot in branches.slot_A.tolist()] == [tokens[n] for n in branches.active_A.tolist()]
        assert branches.num_slots == len(slots) == len(set(slots)), "no more slots than distinct prefixes"


def test_slots_stay_where_they_are_if_nothing_parts() -> None:
    branches = Branches()
    branches.begin(np.arange(6), np.repeat([0, 1], 3))
    branches.extend(np.array([7, 7, 8, 5, 5, 5]))
    token_R, sources_R = branches.extend(np.array([1, 1, 2, 3, 3, 3]))
    assert sources_R.tolist() == [0, 1, 2]
    assert token_R.tolist() == [1, 2, 3]


def test_no_more_places_move_than_must() -> None:
    assert _seats(np.array([0, 1, 2, 3])).tolist() == [0, 1, 2, 3]
    assert _seats(np.array([0, 0, 1, 2])).tolist() == [0, 3, 1, 2], "one parts, into a new place at the end"
    assert _seats(np.array([0, 1, 3, 4])).tolist() == [0, 1, 3, 2], "the last fills the gap"
    assert _seats(np.array([5, 5, 2])).tolist() == [0, 1, 2]


@given(sources=st.lists(st.integers(0, 12), min_size=1, max_size=16))
def test_every_one_gets_a_place_of_its_own_and_first_ones_stay(sources: list[int]) -> None:
    places = _seats(np.array(sources)).tolist()
    assert sorted(places) == list(range(len(sources)))
    for source in {source for source in sources if source < len(sources)}:
        assert places[sources.index(source)] == source
