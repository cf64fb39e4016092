"""Who attends to whom in a packed row: the bookkeeping, in numpy, up to the tensors that attention reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tba.policy.attention import PackedGroups, ResponseBlock
from tba.policy.devices import as_tensor
from tba.policy.response_tree import Indices

WORTH_A_BLOCK = 2**14
"""Pairs of query and key that attention must be spared, for a head, to make up for one more call of it."""


def packed_layout(
    prompts_at: Sequence[slice],
    inner_RL: Indices,
    inner_lengths_R: Indices,
    group_R: Indices,
    num_tokens: int,
    device: torch.device,
) -> PackedGroups:
    """G prompts at these places of the row, and R responses whose tokens, all but the last, are at places `inner_RL`,
    of which the first `inner_lengths_R` count. Padding in the results points at position 0."""
    lengths_G = np.array([place.stop - place.start for place in prompts_at])
    prompt_index_GP = np.zeros((len(prompts_at), lengths_G.max()), dtype=np.int64)
    for row, place in zip(prompt_index_GP, prompts_at, strict=True):
        row[: place.stop - place.start] = np.arange(place.start, place.stop)
    inner_RL = np.where(np.arange(inner_RL.shape[1]) < inner_lengths_R[:, None], inner_RL, 0)
    cut = _blocks_of_similar_length(inner_lengths_R, prompt_index_GP.shape[1])
    indices = [inner_RL[rows_R, :length] for rows_R, length in cut]
    places = np.concatenate([prompt_index_GP.ravel(), *(index_RL.ravel() for index_RL in indices)])
    row_index_N = np.empty(num_tokens, dtype=np.int64)
    # Responses that share a token compute the same attention for it: any of them will do, here the first. Padding
    # points at position 0, whose own place is the first of all.
    row_index_N[places[::-1]] = np.arange(len(places))[::-1]
    seen_GP = torch.arange(prompt_index_GP.shape[1], device=device) < as_tensor(lengths_G, device).unsqueeze(1)
    blocks = [
        _block(as_tensor(index_RL, device), as_tensor(group_R[rows_R], device), seen_GP)
        for (rows_R, _), index_RL in zip(cut, indices, strict=True)
    ]
    return PackedGroups(as_tensor(prompt_index_GP, device), blocks, as_tensor(row_index_N, device))


def _block(index_RL: Tensor, group_R: Tensor, prompt_seen_GP: Tensor) -> ResponseBlock:
    (R, L), P = index_RL.shape, prompt_seen_GP.shape[1]
    prompt_seen_RLP = prompt_seen_GP[group_R].unsqueeze(1).expand(R, L, P)
    own_seen_RLL = torch.ones(L, L, dtype=torch.bool, device=index_RL.device).tril().expand(R, L, L)
    return ResponseBlock(index_RL, group_R, torch.cat([prompt_seen_RLP, own_seen_RLL], dim=2))


def _blocks_of_similar_length(lengths_R: Indices, prompt_length: int) -> list[tuple[Indices, int]]:
    """Rows by length, cut in halves while that saves attention more padding than another call costs."""

    def cut(rows_R: Indices, lengths_R: Indices) -> list[tuple[Indices, int]]:
        half, longest = len(rows_R) // 2, int(lengths_R[-1])
        if half:
            shorter = int(lengths_R[half - 1])
            saved = half * (longest * (prompt_length + longest) - shorter * (prompt_length + shorter))
            if saved >= WORTH_A_BLOCK:
                return cut(rows_R[:half], lengths_R[:half]) + cut(rows_R[half:], lengths_R[half:])
        return [(rows_R, longest)] if longest else []

    rows_R = np.argsort(lengths_R, kind="stable")
    return cut(rows_R, lengths_R[rows_R])
