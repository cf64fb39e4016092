from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import Lengths, answered

from tba.batch import Answered, collate, micro_batches, pack, split_by_tokens
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
    predictors, targets = packed.predictor_E[packed.distinct_T].tolist(), packed.target_E[packed.distinct_T].tolist()
    t = r = 0
    for g, (prompt, responses) in enumerate(groups):
        in_prompt = packed.prompt_index_GP[g, : len(prompt)].tolist()
        assert [tokens[i] for i in in_prompt] == prompt
        for response in responses:
            own = packed.response_index_RL[r, : len(response) - 1].tolist()
            assert [tokens[i] for i in own] == response[:-1]
            assert [positions[i] for i in in_prompt + own] == list(range(len(prompt) + len(own)))
            assert predictors[t : t + len(response)] == [in_prompt[-1], *own]
            assert targets[t : t + len(response)] == response
            assert packed.response_T[t : t + len(response)].tolist() == [r] * len(response)
            assert not packed.response_index_RL[r, len(own) :].any(), "padding points at position 0"
            assert packed.group_R[r] == g
            t += len(response)
            r += 1
    assert t == len(packed.distinct_T) == len(packed.response_T)
    assert packed.num_responses == r


@given(groups=groups_of_alike)
@settings(max_examples=200, deadline=None)
def test_the_row_holds_each_prompt_and_each_beginning_once(groups: Written) -> None:
    packed = pack(as_answered(groups))
    inner = [{tuple(r[:n]) for r in responses for n in range(1, len(r))} for _, responses in groups]
    assert packed.num_tokens == sum(len(prompt) + len(own) for (prompt, _), own in zip(groups, inner, strict=True))
    assert packed.prompt_lengths_G.tolist() == [len(prompt) for prompt, _ in groups]
    beginnings = [{tuple(r[:n]) for r in responses for n in range(1, len(r) + 1)} for _, responses in groups]
    assert len(packed.predictor_E) == len(packed.target_E) == sum(map(len, beginnings))
    # No position of the row is left out, and none belongs to two groups.
    used = [set(row[:n].tolist()) for row, n in zip(packed.prompt_index_GP, packed.prompt_lengths_G, strict=True)]
    own_lengths = [len(r) - 1 for _, responses in groups for r in responses]
    for row, n, g in zip(packed.response_index_RL, own_lengths, packed.group_R.tolist(), strict=True):
        used[g] |= set(row[:n].tolist())
    assert sorted(index for group in used for index in group) == list(range(packed.num_tokens))


@given(sequences=lengths)
@settings(max_examples=30, deadline=None)
def test_sums_are_over_each_response(sequences: Lengths) -> None:
    packed = pack(answered(sequences))
    values = torch.arange(1.0, len(packed.response_T) + 1, requires_grad=True)
    sums = packed.sum_by_response(values)
    parts = values.split([n for _, responses in sequences for n in responses])
    assert sums.tolist() == [part.sum().item() for part in parts]
    (sums * torch.arange(len(sums))).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == packed.response_T.float().tolist()


def test_sums_and_batches_keep_the_precision_they_are_given() -> None:
    groups = [make_group([5, 6], [[7], [8, 9]], [0.1, 0.5])]
    packed = collate(groups).packed
    for given_type, summed in [(torch.float64, torch.float64), (torch.float32, torch.float32)]:
        assert packed.sum_by_response(torch.ones(3, dtype=given_type)).dtype == summed
    assert packed.sum_by_response(torch.ones(3, dtype=torch.bfloat16)).dtype == torch.float32
    assert {collate(groups).reward_GK.dtype, collate(groups).reference_GK.dtype} == {torch.float32}
    exact = collate(groups, torch.float64)
    assert exact.reward_GK.tolist() == [[0.1, 0.5]]
    assert exact.reference_GK.dtype == torch.float64


def test_collated_rows_are_groups_and_columns_trajectories() -> None:
    groups = [
        make_group([5, 6], [[7], [8, 9]], [0.25, 0.5]),
        make_group([4], [[3, 3, 3], [2, 2]], [1.0, -1.0]),
    ]
    batch = collate(groups)
    assert batch.shape == (2, 2)
    assert batch.reward_GK.tolist() == [[0.25, 0.5], [1.0, -1.0]]
    assert batch.reference_GK.tolist() == [[-1.0, -2.0], [-3.0, -2.0]]
    assert batch.sum_by_trajectory(torch.ones(8)).tolist() == [[1.0, 2.0], [3.0, 2.0]]


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
    seen = [group for part in parts for group in part]
    assert sorted(group.serial for group in seen) == list(range(len(groups)))
    assert all(group is groups[group.serial] for group in seen)
    assert all(sum(map(size, part)) <= budget or len(part) == 1 for part in parts)
    assert [group.num_tokens for group in seen] == sorted(group.num_tokens for group in groups)


@given(sequences=lengths, budget=st.integers(1, 80))
@settings(max_examples=80, deadline=None)
def test_splits_are_in_order_and_no_smaller_than_they_must_be(sequences: Lengths, budget: int) -> None:
    given_groups = answered(sequences)
    parts = list(split_by_tokens(given_groups, budget))
    assert [prompt.id for part in parts for prompt, _ in part] == [prompt.id for prompt, _ in given_groups]

    def tokens(part: list[Answered]) -> int:
        return sum(len(prompt.tokens) + sum(map(len, responses)) for prompt, responses in part)

    for part, following in pairwise(parts):
        assert tokens(part) + tokens(following[:1]) > budget
