"""Groups to tensors: the border where plain data becomes torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tba.policy.attention import PackedGroups
from tba.policy.devices import CPU, as_tensor
from tba.policy.layout import packed_layout
from tba.policy.response_tree import ResponseTree
from tba.types import Group, Prompt, Response, TokenLogprobs

Answered = tuple[Prompt, Sequence[Response]]


@dataclass(frozen=True)
class PackedTokens:
    """Prompts and responses for one forward pass, laid end to end in one row of N tokens.

    For each of G prompts the row holds the prompt once, then its responses (R in all) as a tree: what several begin
    with is there once. Last tokens predict nothing and are not in the row. T counts the response tokens that the policy
    wrote, last ones included; E counts those among them that differ in their token or in what they follow. What others
    wrote is in the row and is read, and not predicted. For example, "4" and "5!" to
    one prompt and "3?" and "37" to another, where . ends a response:

        row         2 + 2 = 4 5 !   1 + 2 = 3 7 ?       N = 14
        T           4 . 5 ! .       3 ? . 3 7 .         T = 11, of which "3" is there twice: E = 10
        predictor   = 4 = 5 !       = 3 ? = 3 7         by its place in the row
    """

    answered: Sequence[Answered]
    """What was packed."""
    tokens_N: Tensor
    positions_N: Tensor
    predictor_E: Tensor
    """Position in the row whose hidden state predicts each distinct response token."""
    target_E: Tensor
    distinct_T: Tensor
    """Which of these, in 0..E-1, each response token is."""
    prompts_at: Sequence[slice]
    """Where each prompt is in the row."""
    layout: PackedGroups
    """Who attends to whom."""

    @property
    def targets(self) -> Tensor:
        """All response tokens that the policy wrote, response by response."""
        return self.target_E[self.distinct_T]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens_N)

    @property
    def responses(self) -> list[Response]:
        return [response for _, responses in self.answered for response in responses]


@dataclass(frozen=True)
class Batch:
    """G groups of K trajectories: the tokens to compute, and what is recorded of each trajectory.

    J counts the tokens that the policy wrote in all trajectories, one after the other.
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
    on_policy_GK: Tensor

    @property
    def num_tokens_of_parts(self) -> list[int]:
        """T of each part."""
        return [len(part.distinct_T) for part in self.parts]


def collate(
    groups: Sequence[Group], max_tokens: int, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> Batch:
    """Groups of equal size to tensors; rewards in the given precision. Parts have at most `max_tokens` if possible."""
    trajectories = [t for group in groups for t in group.trajectories]
    answered: list[Answered] = []
    places: list[int] = []
    for group in groups:
        responses, found = distinct([t.response for t in group.trajectories])
        offset = sum(len(earlier) for _, earlier in answered)
        answered.append((group.prompt, responses))
        places += [offset + place for place in found]
    sizes_R = np.array([response.num_written for _, responses in answered for response in responses])
    starts_R = np.cumsum(sizes_R) - sizes_R
    lengths = sizes_R[places]
    place_J = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    written = [t.response.written for t in trajectories]
    shape = (len(groups), -1)
    rewards = np.array([t.reward for t in trajectories])

    def recorded(values: Iterable[TokenLogprobs]) -> Tensor:
        own = [logprobs[is_own] for logprobs, is_own in zip(values, written, strict=True)]
        return as_tensor(np.concatenate(own, dtype=np.float64), device)

    return Batch(
        parts=tuple(pack(part, device) for part in split_by_tokens(answered, max_tokens)),
        token_J=as_tensor(np.repeat(starts_R[places], lengths) + place_J, device),
        trajectory_J=as_tensor(np.repeat(np.arange(len(trajectories)), lengths), device),
        position_J=as_tensor(np.concatenate([np.flatnonzero(is_own) for is_own in written]), device),
        behaviour_J=recorded(t.response.token_logprobs for t in trajectories),
        reference_J=recorded(t.reference_token_logprobs for t in trajectories),
        reward_GK=as_tensor(rewards, device).to(dtype).view(shape),
        length_GK=as_tensor(lengths, device).view(shape),
        on_policy_GK=as_tensor(np.array([t.response.on_policy for t in trajectories]), device).view(shape),
    )


def distinct(responses: Sequence[Response]) -> tuple[list[Response], list[int]]:
    """The responses that differ in their tokens, or in who wrote them, in order, and the place of each among them.

    A policy that has become certain answers a prompt the same way again and again; the law is the same for each copy.
    """
    places: dict[tuple[bytes, bytes], int] = {}
    keys = ((response.tokens.tobytes(), response.written.tobytes()) for response in responses)
    found = [places.setdefault(key, len(places)) for key in keys]
    firsts = {place: response for response, place in zip(reversed(responses), reversed(found), strict=True)}
    return [firsts[place] for place in range(len(places))], found


def pack(answered: Sequence[Answered], device: torch.device = CPU) -> PackedTokens:
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

    prompts_at = [slice(start, start + n) for start, n in zip(prompt_starts_G, prompt_lengths_G, strict=True)]
    tokens_N = np.empty(int(sizes_G.sum()), dtype=np.int64)
    positions_N = np.empty_like(tokens_N)
    for (prompt, _), place in zip(answered, prompts_at, strict=True):
        tokens_N[place] = prompt.tokens
        positions_N[place] = np.arange(len(prompt.tokens))
    placed_N = place_RL[tree.is_placed_RL]
    tokens_N[placed_N] = tree.tokens_RL[tree.is_placed_RL]
    positions_N[placed_N] = (prompt_lengths_G[tree.group_R, None] + tree.step_L)[tree.is_placed_RL]

    # Of the response tokens, those that the policy wrote; of the distinct ones, those that are among them.
    written_T = np.concatenate([response.written for response in responses])
    used_E, distinct_T = np.unique(
        tree.distinct_RL[tree.as_given_R][tree.step_L < lengths_R[:, None]][written_T], return_inverse=True
    )
    inner_RL = place_RL[tree.as_given_R, : lengths_R.max() - 1]
    return PackedTokens(
        answered=answered,
        tokens_N=as_tensor(tokens_N, device),
        positions_N=as_tensor(positions_N, device),
        predictor_E=as_tensor(before_RL[tree.is_new_RL][used_E], device),
        target_E=as_tensor(tree.tokens_RL[tree.is_new_RL][used_E], device),
        distinct_T=as_tensor(distinct_T, device),
        prompts_at=prompts_at,
        layout=packed_layout(prompts_at, inner_RL, lengths_R - 1, group_R, len(tokens_N), device),
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
