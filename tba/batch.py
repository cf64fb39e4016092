"""Groups to tensors: the border where plain data becomes torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tba.types import Group, Prompt, Response

Indices = NDArray[np.integer]
Answered = tuple[Prompt, Sequence[Response]]


@dataclass(frozen=True)
class PackedTokens:
    """Prompts and responses for one forward pass, laid end to end in one row of N tokens.

    For each of G prompts the row holds the prompt once, then its responses (R in all), each without its last
    token, which predicts nothing. T counts the response tokens, last ones included. Padding in the index tensors
    points at position 0.
    """

    tokens_N: Tensor
    positions_N: Tensor
    prompt_index_GP: Tensor
    prompt_lengths_G: Tensor
    response_index_RL: Tensor
    group_R: Tensor
    """Which prompt each response belongs to."""
    predictor_T: Tensor
    """Position in the row whose hidden state predicts each response token."""
    target_T: Tensor
    response_T: Tensor
    """Which response, in 0..R-1, each response token belongs to."""

    @property
    def num_tokens(self) -> int:
        return len(self.tokens_N)

    @property
    def num_responses(self) -> int:
        return len(self.group_R)

    def sum_by_response(self, values_T: Tensor) -> Tensor:
        """Sum a per-token quantity over each response, differentiably: (T,) to (R,)."""
        zeros = torch.zeros(self.num_responses, dtype=torch.float32, device=values_T.device)
        return zeros.index_add(0, self.response_T, values_T.float())


@dataclass(frozen=True)
class Batch:
    """G groups of K trajectories: their tokens, and what the objective needs of each."""

    packed: PackedTokens
    """The distinct responses: one that occurs several times in a group is computed once."""
    response_GK: Tensor
    """Which of the packed responses each trajectory has."""
    reward_GK: Tensor
    reference_GK: Tensor
    version_GK: Tensor

    @property
    def shape(self) -> torch.Size:
        return self.reward_GK.shape

    def sum_by_trajectory(self, values_T: Tensor) -> Tensor:
        """Sum a per-token quantity of the packed responses over each trajectory, differentiably: (T,) to (G, K)."""
        return self.packed.sum_by_response(values_T)[self.response_GK]


def collate(groups: Sequence[Group]) -> Batch:
    """Groups of equal size to tensors."""
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
        reward_GK=torch.tensor([[t.reward for t in row] for row in rows], dtype=torch.float32),
        reference_GK=torch.tensor([[t.reference_logprob for t in row] for row in rows], dtype=torch.float32),
        version_GK=torch.tensor([[t.version for t in row] for row in rows]),
    )


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
    tokens: list[Indices] = []
    positions: list[Indices] = []
    prompt_rows: list[Indices] = []
    response_rows: list[Indices] = []
    predictors: list[Indices] = []
    targets: list[Indices] = []
    offset = 0
    for prompt, responses in answered:
        P = len(prompt.tokens)
        tokens.append(np.asarray(prompt.tokens, dtype=np.int64))
        positions.append(np.arange(P))
        prompt_rows.append(np.arange(offset, offset + P))
        last_of_prompt = offset + P - 1
        offset += P
        for response in responses:
            own = np.arange(offset, offset + len(response) - 1)
            tokens.append(response.tokens[:-1])
            positions.append(np.arange(P, P + len(own)))
            response_rows.append(own)
            predictors.append(np.concatenate([[last_of_prompt], own]))
            targets.append(response.tokens)
            offset += len(own)
    return PackedTokens(
        tokens_N=_long(np.concatenate(tokens)),
        positions_N=_long(np.concatenate(positions)),
        prompt_index_GP=_pad(prompt_rows),
        prompt_lengths_G=_long(np.array([len(row) for row in prompt_rows])),
        response_index_RL=_pad(response_rows),
        group_R=_long(np.repeat(np.arange(len(answered)), [len(responses) for _, responses in answered])),
        predictor_T=_long(np.concatenate(predictors)),
        target_T=_long(np.concatenate(targets)),
        response_T=_long(np.repeat(np.arange(len(targets)), [len(t) for t in targets])),
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
