"""Slots against a plain list of every response's tokens: whatever is drawn, each must continue its own prefix."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.engines.branches import Branches


@settings(deadline=None, max_examples=150)
@given(num_prompts=st.integers(1, 5), num_responses=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_every_response_continues_its_own_prefix(num_prompts: int, num_responses: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    branches = Branches(num_prompts, num_responses)
    tokens: dict[int, tuple[int, ...]] = {n: (-1 - n // num_responses,) for n in branches.active_A.tolist()}
    slots = [(-1 - g,) for g in range(num_prompts)]  # what a decoder would hold: the prompt and the tokens so far
    for _ in range(8):
        drawn = rng.integers(0, rng.integers(1, 4), len(branches.active_A))
        ended = rng.random(len(drawn)) < 0.15
        branches.finish(ended)
        if not len(branches.active_A):
            break
        for n, token in zip(branches.active_A.tolist(), drawn[~ended].tolist(), strict=True):
            tokens[n] += (token,)
        token_R, sources_R = branches.extend(drawn[~ended])
        if sources_R is not None:
            slots = [slots[source] for source in sources_R.tolist()]
        slots = [(*prefix, token) for prefix, token in zip(slots, token_R.tolist(), strict=True)]
        assert [slots[slot] for slot in branches.slot_A.tolist()] == [tokens[n] for n in branches.active_A.tolist()]
        assert branches.num_slots == len(slots) == len(set(slots)), "no more slots than distinct prefixes"


def test_slots_stay_where_they_are_if_nothing_parts() -> None:
    branches = Branches(2, 3)
    assert branches.extend(np.array([7, 7, 8, 5, 5, 5]))[1] is not None
    token_R, sources = branches.extend(np.array([1, 1, 2, 3, 3, 3]))
    assert sources is None
    assert token_R.tolist() == [1, 3, 2]


def test_no_more_slots_move_than_must() -> None:
    branches = Branches(3, 4)
    branches.extend(np.array([0, 1, 2, 2] * 3))
    _, sources = branches.extend(np.array([0, 1, 2, 3] + [0, 1, 2, 2] * 2))
    assert sources is not None
    moved = np.flatnonzero(sources != np.arange(len(sources)))
    assert moved.tolist() == [9], "one parts, into a new slot at the end"
    branches.finish(branches.slot_A == 4)
    _, sources = branches.extend(np.zeros(len(branches.active_A), dtype=np.int64))
    assert sources is not None
    assert np.flatnonzero(sources != np.arange(len(sources))).tolist() == [4], "the last fills the gap"
