from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.search.prompts import PromptStream
from tba.tasks.base import Problem
from tba.types import Prompt


def stream(count: int, seed: list[int] | None = None) -> PromptStream:
    problems = [Problem(Prompt(str(i), "", (i,)), "", {}) for i in range(count)]
    return PromptStream(problems, seed or [0, 0, 0])


def take(prompts: PromptStream, count: int) -> list[int]:
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
