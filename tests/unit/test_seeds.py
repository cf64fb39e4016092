"""No two uses of randomness share a stream."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tba
from tba.search.prompts import Exploration, PromptStream
from tba.seeds import Purpose, generator, integer
from tba.tasks.base import Problem
from tba.types import Prompt

PACKAGE = Path(tba.__file__).parent

Use = tuple[Purpose, int, tuple[int, ...]]
# Zeros and the ends of 32-bit words are where lists of numbers could be taken for one another.
words = st.one_of(st.integers(0, 3), st.sampled_from([2**31, 2**32 - 1]))
seeds = st.one_of(words, st.sampled_from([2**32, 2**64 - 1, 2**96, 2**128, 2**128 + 1, 2**160 + 2]))
uses = st.tuples(st.sampled_from(Purpose), seeds, st.lists(words, max_size=5).map(tuple))


def first_bits(use: Use) -> int:
    purpose, seed, numbers = use
    return generator(purpose, seed, *numbers).integers(2**63).item()


@given(one=uses, other=uses)
@settings(max_examples=300, deadline=None)
def test_uses_that_differ_have_streams_that_differ(one: Use, other: Use) -> None:
    assert (first_bits(one) == first_bits(other)) == (one == other)
    (a, seed_a, rest_a), (b, seed_b, rest_b) = one, other
    assert (integer(a, seed_a, *rest_a) == integer(b, seed_b, *rest_b)) == (one == other)


def test_neither_trailing_zeros_nor_neighbouring_numbers_coincide() -> None:
    """All short lists of small numbers, for every purpose."""
    lists = [numbers for length in range(5) for numbers in product(range(3), repeat=length)]
    every = [(purpose, seed, numbers) for purpose in Purpose for seed in range(3) for numbers in lists]
    assert len({first_bits(use) for use in every}) == len(every)


def test_a_long_seed_is_not_taken_for_a_short_one_with_numbers() -> None:
    """Seeds of more than 128 bits run on where the numbers of a shorter seed stand."""
    short = (Purpose.DRAWS, 5, (2, 3))
    for words in ([5, 0, 0, 0, 1, 2, 3], [5, 0, 0, 0, 1, 2, 3, 2], [5, 0, 0, 0, 1, 2]):
        long = sum(word << (32 * place) for place, word in enumerate(words))
        assert first_bits((Purpose.DRAWS, long, ())) != first_bits(short)
        assert first_bits((Purpose.DRAWS, long, (3,))) != first_bits(short)


def test_an_integer_fits_where_63_bits_do() -> None:
    assert max(integer(Purpose.ADAPTERS, seed) for seed in range(100)) < 2**63


@pytest.mark.parametrize("number", [-1, 2**32])
def test_a_number_that_would_be_taken_for_others_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="from 0 to"):
        generator(Purpose.DRAWS, 0, number)


@pytest.mark.parametrize("epoch", range(4))
def test_the_order_of_prompts_tells_nothing_of_the_temperatures(epoch: int) -> None:
    """A Searcher's two streams come from one seed."""
    seed, count = [0, 0, 0], 50
    prompts = PromptStream([Problem(Prompt(str(i), "", ()), "", {}) for i in range(count)], seed)
    prompts.restore({"epoch": epoch, "cursor": 0})
    exploration = Exploration(0.5, 0.5, 2.0, seed)
    numbers = generator(Purpose.DRAWS, 0)
    numbers.bit_generator.state = exploration.state()
    assert [int(p.prompt.id) for p in prompts.take(count)] != numbers.permutation(count).tolist()


MAKERS = {"default_rng", "SeedSequence", "manual_seed", "seed", "PCG64", "RandomState"}
"""Calls that make randomness. (Tasks generate their data with `random.Random`, from `task.seed` and never from the
run's: the data are the same for every run.)"""


def made_up(tree: ast.AST) -> Iterator[str]:
    """Calls that make randomness of anything else than one seed they were given: of lists, of sums, of nothing."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        given_one = len(node.args) == 1 and isinstance(node.args[0], ast.Name | ast.Attribute | ast.Constant)
        if name in MAKERS and not (given_one and not node.keywords):
            yield f"{name}({', '.join(ast.unparse(part) for part in (*node.args, *node.keywords))})"


def test_the_search_for_seeds_finds_them() -> None:
    """The guard of the guard: one that sees nothing forbids nothing."""
    text = "np.random.default_rng([seed, 1]); torch.manual_seed(seed + 1); default_rng(); default_rng(seed)"
    assert list(made_up(ast.parse(text))) == ["default_rng([seed, 1])", "manual_seed(seed + 1)", "default_rng()"]


def test_seeds_are_made_in_one_place() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): list(made_up(ast.parse(path.read_text("utf-8"))))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
    assert found.pop("seeds.py"), "they are made there"
    assert {name: calls for name, calls in found.items() if calls} == {}
