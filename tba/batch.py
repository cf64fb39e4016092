"""Groups to tensors: the border where plain data becomes torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tba.response_tree import Indices, ResponseTree
from tba.types import Group, Prompt, Response, TokenLogprobs

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


@dataclass(frozen=True)
class Batch:
    """G groups of K trajectories: the tokens to compute, and what is recorded of each trajectory.

    J counts the tokens of all trajectories, one after the other.
    """

    parts: tuple[PackedTokens, ...]
    """The distinct responses, computed once however often they occur: in one forward pass, or in several if a single
    group is larger than the budget. T below counts the response tokens of all parts."""
    token_J: Tensor
    """Which of the T computed tokens each token is."""
    trajectory_J: Tensor
    position_J: Tensor
    behaviour_J: Tensor
    reference_J: Tensor
    reward_GK: Tensor
    length_GK: Tensor

    @property
    def num_tokens_of_parts(self) -> list[int]:
        """T of each part."""
        return [len(part.response_T) for part in self.parts]


def collate(groups: Sequence[Group], max_tokens: int, dtype: torch.dtype = torch.float32) -> Batch:
    """Groups of equal size to tensors; rewards in the given precision. Parts have at most `max_tokens` if possible."""
    trajectories = [t for group in groups for t in group.trajectories]
    answered: list[Answered] = []
    places: list[int] = []
    for group in groups:
        responses, found = distinct([t.response for t in group.trajectories])
        offset = sum(len(earlier) for _, earlier in answered)
        answered.append((group.prompt, responses))
        places += [offset + place for place in found]
    sizes_R = np.array([len(response) for _, responses in answered for response in responses])
    starts_R = np.cumsum(sizes_R) - sizes_R
    lengths = sizes_R[places]
    position_J = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    shape = (len(groups), -1)
    return Batch(
        parts=tuple(pack(part) for part in split_by_tokens(answered, max_tokens)),
        token_J=_long(np.repeat(starts_R[places], lengths) + position_J),
        trajectory_J=_long(np.repeat(np.arange(len(trajectories)), lengths)),
        position_J=_long(position_J),
        behaviour_J=_recorded([t.response.token_logprobs for t in trajectories]),
        reference_J=_recorded([t.reference_token_logprobs for t in trajectories]),
        reward_GK=torch.tensor([t.reward for t in trajectories], dtype=dtype).view(shape),
        length_GK=_long(lengths).view(shape),
    )


def _recorded(values: Sequence[TokenLogprobs]) -> Tensor:
    return torch.from_numpy(np.concatenate(values, dtype=np.float64))


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
    """Split by token budget, in order. A prompt whose responses go beyond the budget is cut into parts of its own, each
    with the prompt and as many responses as fit; a single response that does not fit goes alone."""
    chosen: list[Answered] = []
    budget = max_tokens
    for prompt, responses in answered:
        size = _num_tokens(prompt, responses)
        if chosen and size > budget:
            yield chosen
            chosen, budget = [], max_tokens
        if size > max_tokens:
            for part in _cut(responses, max_tokens - len(prompt.tokens)):
                yield [(prompt, part)]
            continue
        chosen.append((prompt, responses))
        budget -= size
    if chosen:
        yield chosen


def _cut(responses: Sequence[Response], max_tokens: int) -> Iterator[list[Response]]:
    part: list[Response] = []
    for response in responses:
        if part and sum(map(len, part)) + len(response) > max_tokens:
            yield part
            part = []
        part.append(response)
    yield part


def _num_tokens(prompt: Prompt, responses: Sequence[Response]) -> int:
    return len(prompt.tokens) + sum(len(response) for response in responses)


def micro_batches(groups: Sequence[Group], max_tokens: int) -> Iterator[list[int]]:
    """The numbers of the groups that go through a pass together, whole; one larger than the budget goes alone.

    Groups go in order of length, so that attention pads little.
    """
    chosen: list[int] = []
    budget = max_tokens
    for number in sorted(range(len(groups)), key=lambda number: groups[number].num_tokens):
        group = groups[number]
        size = _num_tokens(group.prompt, [t.response for t in group.trajectories])
        if chosen and size > budget:
            yield chosen
            chosen, budget = [], max_tokens
        chosen.append(number)
        budget -= size
    if chosen:
        yield chosen


def _long(values: Indices) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


def _pad(indices: list[Indices]) -> Tensor:
    """Rows of unequal length to a rectangle; padding points at position 0 of the row."""
    padded = np.zeros((len(indices), max(len(i) for i in indices)), dtype=np.int64)
    for row, index in zip(padded, indices, strict=True):
        row[: len(index)] = index
    return torch.from_numpy(padded)
