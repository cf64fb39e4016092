from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import Lengths, answered

from tba.policy.batch import Answered, collate, micro_batches, pack, split_by_tokens
from tba.testing import make_group, make_response
from tba.types import Group, Prompt

lengths = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4)), min_size=1, max_size=4
)


# Responses of two tokens begin alike as often as not, are one another's beginning, and come twice.
written = st.lists(st.integers(5, 6), min_size=1, max_size=6)
groups_of_alike = st.lists(
    st.tuples(st.lists(st.integers(5, 6), min_size=1, max_size=3), st.lists(written, min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)
Written = list[tuple[list[int], list[list[int]]]]


def as_answered(groups: Written) -> list[Answered]:
    return [
        (Prompt(str(i), "", tuple(prompt)), [make_response(tokens) for tokens in responses])
        for i, (prompt, responses) in enumerate(groups)
    ]


@given(groups=groups_of_alike)
@example(groups=[([5], [[5]])])
@example(groups=[([5], [[5], [5, 6], [5, 6, 6], [5]]), ([5], [[5, 6]])])
@settings(max_examples=200, deadline=None)
def test_every_token_is_predicted_from_what_comes_before_it(groups: Written) -> None:
    packed = pack(as_answered(groups))
    tokens, positions = packed.tokens_N.tolist(), packed.positions_N.tolist()
    predictors, targets = packed.predictor_E[packed.distinct_T].tolist(), packed.targets.tolist()
    t = 0
    places: dict[tuple[int, ...], int] = {}
    for g, (prompt, responses) in enumerate(groups):
        at = packed.prompts_at[g]
        assert tokens[at] == prompt
        assert positions[at] == list(range(len(prompt)))
        for response in responses:
            assert targets[t : t + len(response)] == response
            first, *others = predictors[t : t + len(response)]
            assert first == at.stop - 1, "the first token is predicted by the prompt's last"
            assert [tokens[place] for place in others] == response[:-1]
            assert [positions[place] for place in others] == list(range(len(prompt), len(prompt) + len(others)))
            for n, place in enumerate(others, 1):  # one place for each beginning, and one beginning for each place
                assert places.setdefault((g, *response[:n]), place) == place
            t += len(response)
    assert t == len(packed.distinct_T)
    assert len(set(places.values())) == len(places)


@given(groups=groups_of_alike)
@settings(max_examples=200, deadline=None)
def test_the_row_holds_each_prompt_and_each_beginning_once(groups: Written) -> None:
    packed = pack(as_answered(groups))
    inner = [{tuple(r[:n]) for r in responses for n in range(1, len(r))} for _, responses in groups]
    assert packed.num_tokens == sum(len(prompt) + len(own) for (prompt, _), own in zip(groups, inner, strict=True))
    beginnings = [{tuple(r[:n]) for r in responses for n in range(1, len(r) + 1)} for _, responses in groups]
    assert len(packed.predictor_E) == len(packed.target_E) == sum(map(len, beginnings))


def test_the_example_of_the_docstring_is_true() -> None:
    """Tokens are the characters."""
    written = [("2+2=", ["4.", "5!."]), ("1+2=", ["3?.", "37."])]
    packed = pack(as_answered([([*map(ord, p)], [[*map(ord, r)] for r in rs]) for p, rs in written]))
    row = "".join(map(chr, packed.tokens_N.tolist()))
    predictors = "".join(row[place] for place in packed.predictor_E[packed.distinct_T].tolist())
    assert (row, packed.num_tokens) == ("2+2=45!1+2=37?", 14)
    assert "".join(map(chr, packed.targets.tolist())) == "4.5!.3?.37."
    assert predictors == "=4=5!=3?=37"
    assert (len(packed.distinct_T), len(packed.target_E)) == (11, 10)


def test_collated_rows_are_groups_and_columns_trajectories() -> None:
    groups = [
        make_group([5, 6], [[7], [8, 9]], [0.25, 0.5]),
        make_group([4], [[3, 3, 3], [2, 2]], [1.0, -1.0]),
    ]
    batch = collate(groups, 1_000)
    assert batch.reward_GK.tolist() == [[0.25, 0.5], [1.0, -1.0]]
    assert batch.length_GK.tolist() == [[1, 2], [3, 2]]
    assert batch.trajectory_J.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]
    assert batch.position_J.tolist() == [0, 0, 1, 0, 1, 2, 0, 1]


def test_rewards_have_the_precision_that_is_asked_for_and_records_are_exact() -> None:
    groups = [make_group([5, 6], [[7], [8, 9]], [0.1, 0.5])]
    assert collate(groups, 1_000).reward_GK.dtype == torch.float32
    exact = collate(groups, 1_000, torch.float64)
    assert exact.reward_GK.tolist() == [[0.1, 0.5]]
    assert {exact.behaviour_J.dtype, exact.reference_J.dtype} == {torch.float64}


@given(groups=groups_of_alike, budget=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_every_token_of_every_trajectory_is_computed_in_some_part(groups: Written, budget: int) -> None:
    """Whatever the parts and however many copies: a token's number leads to the token itself."""
    [(prompt, responses), *_] = groups
    group = make_group(prompt, responses, np.zeros(len(responses)))
    batch = collate([group], budget)
    computed_T = torch.cat([part.targets for part in batch.parts])
    assert computed_T[batch.token_J].tolist() == [token for response in responses for token in response]
    assert len(computed_T) == sum(map(len, {tuple(response) for response in responses})), "copies are computed once"
    assert batch.num_tokens_of_parts == [len(part.targets) for part in batch.parts]


def size(group: Group) -> int:
    return len(group.prompt.tokens) + group.num_tokens


def numbered_groups(sequences: Lengths) -> list[Group]:
    return [
        make_group(prompt.tokens, [r.tokens.tolist() for r in responses], np.zeros(len(responses)), serial=serial)
        for serial, (prompt, responses) in enumerate(answered(sequences))
    ]


@given(sequences=lengths, budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_micro_batches_hold_every_group_whole_and_once(sequences: Lengths, budget: int) -> None:
    groups = numbered_groups(sequences)
    parts = list(micro_batches(groups, budget))
    seen = [number for part in parts for number in part]
    assert sorted(seen) == list(range(len(groups)))
    assert all(sum(size(groups[i]) for i in part) <= budget or len(part) == 1 for part in parts)
    assert [groups[i].num_tokens for i in seen] == sorted(group.num_tokens for group in groups)


def tokens(part: Sequence[Answered]) -> int:
    return sum(len(prompt.tokens) + sum(map(len, responses)) for prompt, responses in part)


@given(sequences=lengths, budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_splits_are_in_order_and_hold_every_response_once(sequences: Lengths, budget: int) -> None:
    given_groups = answered(sequences)
    parts = list(split_by_tokens(given_groups, budget))
    expected = [(prompt.id, id(response)) for prompt, responses in given_groups for response in responses]
    assert [(p.id, id(r)) for part in parts for p, responses in part for r in responses] == expected
    for part in parts:
        # Beyond the budget goes only a single response, with its prompt.
        assert tokens(part) <= budget or [len(responses) for _, responses in part] == [1]


@given(sequences=lengths, budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_splits_are_no_smaller_than_they_must_be(sequences: Lengths, budget: int) -> None:
    parts = list(split_by_tokens(answered(sequences), budget))
    for part, following in pairwise(parts):
        (last, _), (first, responses) = part[-1], following[0]
        if last.id == first.id:  # a prompt that was cut
            assert tokens(part) + len(responses[0]) > budget
        else:
            whole = [(first, rs) for p, rs in answered(sequences) if p.id == first.id]
            assert tokens(part) + tokens(whole) > budget or tokens(part) > budget or _is_cut(parts, last.id)


def _is_cut(parts: Sequence[Sequence[Answered]], prompt_id: str) -> bool:
    """Nothing joins the last part of a prompt that was cut."""
    return sum(prompt.id == prompt_id for part in parts for prompt, _ in part) > 1
