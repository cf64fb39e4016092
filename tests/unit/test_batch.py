from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import Lengths, answered

from tba.batch import Answered, collate, micro_batches, pack, split_by_tokens
from tba.testing import make_group
from tba.types import Group

lengths = st.lists(
    st.tuples(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=1, max_size=4)), min_size=1, max_size=4
)


@given(sequences=lengths)
@example(sequences=[(1, [1])])
@example(sequences=[(3, [1, 1]), (1, [9])])
@settings(max_examples=60, deadline=None)
def test_every_token_is_predicted_from_what_comes_before_it(sequences: Lengths) -> None:
    given_groups = answered(sequences)
    packed = pack(given_groups)
    tokens, positions, predictors = (x.tolist() for x in (packed.tokens_N, packed.positions_N, packed.predictor_T))
    t = r = 0
    for g, (prompt, responses) in enumerate(given_groups):
        for response in responses:
            sequence = [*prompt.tokens, *response.tokens.tolist()]
            for i, target in enumerate(response.tokens.tolist()):
                before = len(prompt.tokens) - 1 + i
                assert tokens[predictors[t]] == sequence[before]
                assert positions[predictors[t]] == before
                assert packed.target_T[t] == target
                assert packed.response_T[t] == r
                t += 1
            assert packed.group_R[r] == g
            r += 1
    assert t == len(packed.target_T) == len(predictors)
    assert packed.num_responses == r


@given(sequences=lengths)
@settings(max_examples=60, deadline=None)
def test_the_row_holds_each_prompt_once_and_no_last_token(sequences: Lengths) -> None:
    packed = pack(answered(sequences))
    assert packed.num_tokens == sum(prompt + sum(responses) - len(responses) for prompt, responses in sequences)
    assert packed.prompt_lengths_G.tolist() == [prompt for prompt, _ in sequences]
    inside = [row[:n].tolist() for row, n in zip(packed.prompt_index_GP, packed.prompt_lengths_G, strict=True)]
    own_lengths = [n - 1 for _, responses in sequences for n in responses]
    inside += [row[:n].tolist() for row, n in zip(packed.response_index_RL, own_lengths, strict=True)]
    # Each position of the row belongs to one prompt or one response: nothing is left out, nothing comes twice.
    assert sorted(index for row in inside for index in row) == list(range(packed.num_tokens))
    padding = [row[n:] for row, n in zip(packed.response_index_RL, own_lengths, strict=True)]
    assert not torch.cat(padding).any(), "padding points at position 0"


@given(sequences=lengths)
@settings(max_examples=30, deadline=None)
def test_sums_are_over_each_response(sequences: Lengths) -> None:
    packed = pack(answered(sequences))
    values = torch.arange(1.0, len(packed.target_T) + 1, requires_grad=True)
    sums = packed.sum_by_response(values)
    parts = values.split([n for _, responses in sequences for n in responses])
    assert sums.tolist() == [part.sum().item() for part in parts]
    (sums * torch.arange(len(sums))).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == packed.response_T.float().tolist()


def test_collated_rows_are_groups_and_columns_trajectories() -> None:
    groups = [
        make_group([5, 6], [[7], [8, 9]], [0.25, 0.5], version=3),
        make_group([4], [[3, 3, 3], [2, 2]], [1.0, -1.0], version=5),
    ]
    batch = collate(groups)
    assert batch.shape == (2, 2)
    assert batch.reward_GK.tolist() == [[0.25, 0.5], [1.0, -1.0]]
    assert batch.reference_GK.tolist() == [[-1.0, -2.0], [-3.0, -2.0]]
    assert batch.version_GK.tolist() == [[3, 3], [5, 5]]
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
