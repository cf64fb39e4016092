from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.buffer.spreads import KEPT, SpreadTable
from tba.search.prompts import ChosenPrompts, Prompts, PromptStream, shares
from tba.tasks.base import Problem
from tba.testing import make_group
from tba.types import Prompt, PromptSpreads, Unused, prompt_key


def stream(count: int, seed: list[int] | None = None) -> PromptStream:
    problems = [Problem(Prompt(str(i), "", (i,)), "", {}) for i in range(count)]
    return PromptStream(problems, seed or [0, 0, 0])


def take(prompts: Prompts, count: int) -> list[int]:
    return [int(problem.prompt.id) for problem in prompts.take(count)]


takes = st.lists(st.integers(0, 12), max_size=12)


@given(count=st.integers(1, 9), sizes=takes)
@settings(max_examples=60, deadline=None)
def test_each_epoch_visits_every_problem_once(count: int, sizes: list[int]) -> None:
    prompts = stream(count)
    taken = [take(prompts, size) for size in sizes]
    assert [len(batch) for batch in taken] == sizes
    visited = [problem for batch in taken for problem in batch]
    for start in range(0, len(visited), count):
        epoch = visited[start : start + count]
        assert len(set(epoch)) == len(epoch)
        assert len(epoch) < count or set(epoch) == set(range(count))


def test_the_size_of_batches_does_not_change_the_order() -> None:
    prompts = stream(7)
    assert [problem for size in (1, 4, 9, 16) for problem in take(prompts, size)] == take(stream(7), 30)


def test_epochs_and_searchers_go_in_orders_of_their_own() -> None:
    prompts = stream(30)
    first, second = take(prompts, 30), take(prompts, 30)
    assert first != second
    assert first == take(stream(30), 30)
    assert len({tuple(take(stream(30, [0, index, start]), 30)) for index in (0, 1) for start in (0, 1)}) == 4


@pytest.mark.parametrize("taken", [0, 1, 6, 7, 8, 25])
def test_a_restored_stream_goes_on_where_it_was(taken: int) -> None:
    prompts = stream(7)
    take(prompts, taken)
    state = json.loads(json.dumps(prompts.state()))
    restored = stream(7)
    take(restored, 3)
    restored.restore(state)
    assert take(restored, 20) == take(prompts, 20)


def test_a_checkpoint_holds_the_epoch_and_the_place_in_it() -> None:
    """The format of checkpoints that exist."""
    prompts = stream(7)
    prompts.restore({"epoch": 2, "cursor": 3})
    assert take(prompts, 4) == take(stream(7), 21)[-4:]
    assert prompts.state() == {"epoch": 2, "cursor": 7}


# ---------------------------------------------------------------------------------------------------------------------
# Chosen by what came of them
# ---------------------------------------------------------------------------------------------------------------------


def table_of(rewards: dict[str, list[float]]) -> SpreadTable:
    table = SpreadTable()
    for prompt_id, found in rewards.items():
        table.add(make_group([1], [[2]] * len(found), found, prompt_id=prompt_id))
    table.fold()
    return table


def keys_of(count: int) -> Any:
    return np.array([prompt_key(str(i)) for i in range(count)], np.uint64)


def chosen(count: int, seed: list[int] | None = None) -> ChosenPrompts:
    return ChosenPrompts([Problem(Prompt(str(i), "", (i,)), "", {}) for i in range(count)], seed or [0, 0, 0])


def test_shares_worked_out_by_hand() -> None:
    """Variances 1/4, 3/16 and 0 of four responses each, and a prompt that was never tried."""
    spreads = table_of({"0": [0, 1, 0, 1], "1": [0, 0, 0, 1], "2": [1, 1, 1, 1]}).spreads()
    weights = np.array([(1 + 1 / 4) / 5, (3 / 4 + 1 / 4) / 5, (1 / 4) / 5, 1 / 4])
    assert weights.tolist() == pytest.approx([0.25, 0.2, 0.05, 0.25])
    assert shares(keys_of(4), spreads) == pytest.approx(weights / weights.sum(), rel=1e-12)


group_rewards = st.lists(st.floats(-3, 3), min_size=2, max_size=6)


@given(tried=st.dictionaries(st.integers(0, 11).map(str), group_rewards, max_size=12), scale=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_every_prompt_keeps_a_share_and_the_untried_have_the_largest(
    tried: dict[str, list[float]], scale: float
) -> None:
    found = shares(keys_of(12), table_of(tried).spreads())
    assert found.sum() == pytest.approx(1)
    for i, share in enumerate(found):
        num = len(tried.get(str(i), []))
        assert share >= 1 / ((num + 1) * 12) * (1 - 1e-12), "the floor that is promised"
        if not num:
            assert share >= found.max() * (1 - 1e-12)
    scaled = {i: [scale * reward for reward in rewards] for i, rewards in tried.items()}
    if max((np.var(rewards) for rewards in tried.values()), default=0) > 1e-12:
        assert shares(keys_of(12), table_of(scaled).spreads()) == pytest.approx(found, rel=1e-6), "any unit of reward"


def test_before_anything_is_known_all_are_alike() -> None:
    assert shares(keys_of(4), SpreadTable().spreads()) == pytest.approx([0.25] * 4)


def test_prompts_of_others_do_not_matter() -> None:
    """The table may have prompts that this Searcher's data no longer have."""
    tried = {"0": [0.0, 1.0], "1": [1.0, 1.0]}
    with_others = table_of({**tried, "elsewhere": [0.0, 100.0]}).spreads()
    assert shares(keys_of(3), with_others) == pytest.approx(shares(keys_of(3), table_of(tried).spreads()))


def test_draws_follow_the_shares() -> None:
    """10,000 draws of a fixed seed, each count within five standard errors."""
    spreads = table_of({"0": [0, 1, 0, 1], "1": [0, 0, 0, 1], "2": [1, 1, 1, 1]}).spreads()
    prompts = chosen(4)
    prompts.learn(spreads.to_bytes())
    expected = shares(keys_of(4), spreads)
    counts = Counter(take(prompts, 10_000))
    for i, share in enumerate(expected):
        assert abs(counts[i] / 10_000 - share) < 5 * np.sqrt(share * (1 - share) / 10_000)


def test_newer_groups_count_more_and_arrivals_wait_for_the_fold() -> None:
    table = table_of({"0": [0.0, 1.0]})
    table.add(Unused("0", 4))
    assert table.spreads().squares.tolist() == [0.5]
    table.fold()
    assert table.spreads().num.tolist() == [KEPT * 2 + 4]
    assert table.spreads().squares.tolist() == [KEPT * 0.5]


def test_a_table_comes_back_from_a_checkpoint_with_what_has_arrived() -> None:
    table = table_of({"a": [0.1, 0.7], "b": [1 / 3, 0.2, 0.9]})
    table.add(Unused("c", 3))
    again = SpreadTable()
    again.restore(json.loads(json.dumps(table.state())))
    assert again.spreads().to_bytes() == table.spreads().to_bytes(), "to the bit"
    for each in (table, again):
        each.fold()
    assert again.spreads().to_bytes() == table.spreads().to_bytes()
    assert len(again.spreads().keys) == 3


def test_spreads_travel_as_bytes() -> None:
    for rewards in ({}, {"a": [0.0, 1.0]}, {"a": [0.0, 1.0], "b": [1.0, 1.0]}):
        before = table_of(rewards).spreads()
        after = PromptSpreads.from_bytes(before.to_bytes())
        for name in ("keys", "num", "squares"):
            assert np.array_equal(getattr(after, name), getattr(before, name))


def test_a_restored_choice_goes_on_where_it_was() -> None:
    note = table_of({"3": [0, 1]}).spreads().to_bytes()
    prompts, restored = chosen(9), chosen(9)
    for each in (prompts, restored):
        each.learn(note)
    first = take(prompts, 13)
    restored.restore(json.loads(json.dumps(prompts.state())))
    assert take(restored, 20) == take(prompts, 20)
    assert first == take(chosen_with(note), 13)
    assert take(chosen(9, [0, 1, 0]), 20) != take(chosen(9), 20)


def chosen_with(note: bytes) -> ChosenPrompts:
    prompts = chosen(9)
    prompts.learn(note)
    return prompts


def test_a_run_may_change_how_it_takes_prompts_when_it_is_resumed() -> None:
    shuffled, choosing = stream(7), chosen(7)
    shuffled.restore({"taken": 5})
    choosing.restore({"epoch": 2, "cursor": 3})
    assert take(shuffled, 7) == take(stream(7), 7)
    assert take(choosing, 7) == take(chosen(7), 7)
