"""Groups to tensors: the border where plain data becomes torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tba.precision import at_least_float32
from tba.response_tree import Indices, ResponseTree
from tba.types import Group, Prompt, Response, Trajectory

Answered = tuple[Prompt, Sequence[Response]]


@dataclass(frozen=True)
class PackedTokens:
    """Prompts and responses for one forward pass, laid end to end in one row of N tokens.

    For each of G prompts the row holds the prompt once, then its responses (R in all) as a tree: what several begin
    with is there once. Last tokens predict nothing and are not in the row. T counts the response tokens, last ones
    included; E counts those among them that differ in their token or in what they follow. Padding in the index tensors
    points at position 0.
    """

    tokens_N: Tensor
    positions_N: Tensor
    prompt_index_GP: Tensor
    prompt_lengths_G: Tensor
    response_index_RL: Tensor
    inner_lengths_R: Tensor
    """Tokens of each response that are in the row: all but the last."""
    group_R: Tensor
    """Which prompt each response belongs to."""
    predictor_E: Tensor
    """Position in the row whose hidden state predicts each distinct response token."""
    target_E: Tensor
    distinct_T: Tensor
    """Which of these, in 0..E-1, each response token is."""
    response_T: Tensor
    """Which response, in 0..R-1, each response token belongs to."""

    @property
    def targets(self) -> Tensor:
        """All response tokens, response by response."""
        return self.target_E[self.distinct_T]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens_N)

    @property
    def num_responses(self) -> int:
        return len(self.group_R)

    def sum_by_response(self, values_T: Tensor) -> Tensor:
        """Sum a per-token quantity over each response, differentiably: (T,) to (R,)."""
        values_T = at_least_float32(values_T)
        return values_T.new_zeros(self.num_responses).index_add(0, self.response_T, values_T)


@dataclass(frozen=True)
class Batch:
    """G groups of K trajectories: their tokens, and what the objective needs of each."""

    packed: PackedTokens
    """The distinct responses: one that occurs several times in a group is computed once."""
    response_GK: Tensor
    """Which of the packed responses each trajectory has."""
    reward_GK: Tensor
    reference_GK: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.reward_GK.shape

    def sum_by_trajectory(self, values_T: Tensor) -> Tensor:
        """Sum a per-token quantity of the packed responses over each trajectory, differentiably: (T,) to (G, K)."""
        return self.packed.sum_by_response(values_T)[self.response_GK]


def collate(groups: Sequence[Group], dtype: torch.dtype = torch.float32) -> Batch:
    """Groups of equal size to tensors; rewards and the reference's log-probabilities in the given precision."""
    rows = [group.trajectories for group in groups]
    answered: list[Answered] = []
    positions: list[list[int]] = []
    for group, row in zip(groups, rows, strict=True):
        responses, places = distinct([t.response for t in row])
        offset = sum(len(earlier) for _, earlier in answered)
        answered.append((group.prompt, responses))
        positions.append([offset + place for place in places])
    return Batch(
        packed=pack(answered),
        response_GK=torch.tensor(positions),
        reward_GK=torch.tensor([[t.reward for t in row] for row in rows], dtype=dtype),
        reference_GK=_reference_logprobs([t for row in rows for t in row]).to(dtype).view(len(rows), -1),
    )


def _reference_logprobs(trajectories: Sequence[Trajectory]) -> Tensor:
    """The reference's log-probability of each whole response, all in one sum."""
    views = [t.reference_token_logprobs for t in trajectories]
    starts = np.cumsum([0, *map(len, views)])[:-1]
    return torch.from_numpy(np.add.reduceat(np.concatenate(views, dtype=np.float64), starts))


def distinct(responses: Sequence[Response]) -> tuple[list[Response], list[int]]:
    """The responses that differ in their tokens, in order, and for each response its place among them.

    A policy that has become certain answers a prompt the same way again and again; the law is the same for each copy.
    """
    places: dict[bytes, int] = {}
    found = [places.setdefault(response.tokens.tobytes(), len(places)) for response in responses]
    firsts = {place: response for response, place in zip(reversed(responses), reversed(found), strict=True)}
    return [firsts[place] for place in range(len(places))], found


def pack(answered: Sequence[Answered]) -> PackedTokens:
    """Prompts with their responses, of any number each, to one row."""
    responses = [response for _, group in answered for response in group]
    group_R = np.repeat(np.arange(len(answered)), [len(group) for _, group in answered])
    lengths_R = np.array([len(response) for response in responses])
    tree = ResponseTree.of([response.tokens for response in responses], group_R)

    prompt_lengths_G = np.array([len(prompt.tokens) for prompt, _ in answered])
    sizes_G = prompt_lengths_G + tree.num_placed(len(answered))
    prompt_starts_G = np.cumsum(sizes_G) - sizes_G
    # Before the i-th placed token there are i others, and the prompts up to that of its own group.
    place_RL = tree.place_RL + np.cumsum(prompt_lengths_G)[tree.group_R, None]
    prompt_end_R1 = (prompt_starts_G + prompt_lengths_G - 1)[tree.group_R, None]
    before_RL = np.concatenate([prompt_end_R1, place_RL[:, :-1]], axis=1)

    tokens_N = np.empty(int(sizes_G.sum()), dtype=np.int64)
    positions_N = np.empty_like(tokens_N)
    prompt_rows = [np.arange(start, start + n) for start, n in zip(prompt_starts_G, prompt_lengths_G, strict=True)]
    for (prompt, _), row in zip(answered, prompt_rows, strict=True):
        tokens_N[row] = prompt.tokens
        positions_N[row] = np.arange(len(row))
    placed_N = place_RL[tree.is_placed_RL]
    tokens_N[placed_N] = tree.tokens_RL[tree.is_placed_RL]
    positions_N[placed_N] = (prompt_lengths_G[tree.group_R, None] + tree.step_L)[tree.is_placed_RL]

    index_RL = place_RL[tree.as_given_R, : lengths_R.max() - 1]
    return PackedTokens(
        tokens_N=_long(tokens_N),
        positions_N=_long(positions_N),
        prompt_index_GP=_pad(prompt_rows),
        prompt_lengths_G=_long(prompt_lengths_G),
        response_index_RL=_long(np.where(tree.step_L[:-1] < lengths_R[:, None] - 1, index_RL, 0)),
        inner_lengths_R=_long(lengths_R - 1),
        group_R=_long(group_R),
        predictor_E=_long(before_RL[tree.is_new_RL]),
        target_E=_long(tree.tokens_RL[tree.is_new_RL]),
        distinct_T=_long(tree.distinct_RL[tree.as_given_R][tree.step_L < lengths_R[:, None]]),
        response_T=_long(np.repeat(np.arange(len(responses)), lengths_R)),
    )


def split_by_tokens(answered: Sequence[Answered], max_tokens: int) -> Iterator[list[Answered]]:
    """Split by token budget, whole groups only, in order. One that is larger than the budget goes alone."""
    chosen: list[Answered] = []
    budget = max_tokens
    for prompt, responses in answered:
        size = len(prompt.tokens) + sum(len(response) for response in responses)
        if chosen and size > budget:
            yield chosen
            chosen, budget = [], max_tokens
        chosen.append((prompt, responses))
        budget -= size
    if chosen:
        yield chosen


def micro_batches(groups: Sequence[Group], max_tokens: int) -> Iterator[list[Group]]:
    """Groups for one pass each. Trajectory balance compares a group's responses, so no group comes apart.

    Groups go in order of length, so that attention pads little.
    """
    ordered = iter(by_length := sorted(groups, key=lambda group: group.num_tokens))
    answered = [(group.prompt, [t.response for t in group.trajectories]) for group in by_length]
    for part in split_by_tokens(answered, max_tokens):
        yield [next(ordered) for _ in part]


def _long(values: Indices) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _pad(indices: list[Indices]) -> Tensor:
    """Rows of unequal length to a rectangle; padding points at position 0 of the row."""
    padded = np.zeros((len(indices), max(len(i) for i in indices)), dtype=np.int64)
    for row, index in zip(padded, indices, strict=True):
        row[: len(index)] = index
    return torch.from_numpy(padded)
