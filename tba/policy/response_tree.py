"""Responses that begin alike, as a tree: which of their tokens are new, and whose the others are. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.integer]


@dataclass(frozen=True)
class ResponseTree:
    """R responses of at most L tokens, in lexicographic order within their groups.

    In that order every response has in common with its predecessor whatever it has in common with any before it: so
    one look back tells what is new.
    """

    tokens_RL: Indices
    """Padded with -1."""
    group_R: Indices
    as_given_R: Indices
    """Indexing by this restores the order in which responses were given."""
    step_L: Indices
    is_new_RL: NDArray[np.bool_]
    """Tokens that no earlier response of the group has, after the same beginning."""
    distinct_RL: Indices
    """New tokens are counted off; one that is not new has the number of the token it repeats."""
    is_placed_RL: NDArray[np.bool_]
    """The same among tokens that predict another. A last token does not, even where a longer response goes on from
    it: there it does."""
    place_RL: Indices
    """Placed tokens are counted off likewise."""

    @classmethod
    def of(cls, responses: Sequence[Indices], group_R: Indices) -> ResponseTree:
        """None of the responses is empty. Groups are numbered from 0, in order."""
        lengths_R = np.array([len(tokens) for tokens in responses])
        tokens_RL = np.full((len(responses), lengths_R.max()), -1, dtype=np.int64)
        for row, tokens in zip(tokens_RL, responses, strict=True):
            row[: len(tokens)] = tokens
        order_R = np.lexsort((*tokens_RL.T[::-1], group_R))
        tokens_RL, group_R, lengths_R1 = tokens_RL[order_R], group_R[order_R], lengths_R[order_R, None]
        step_L = np.arange(tokens_RL.shape[1])
        common_R1 = _in_common_with_predecessor(tokens_RL, group_R)
        inner_R1 = lengths_R1 - 1
        shared_R1 = np.minimum(common_R1, np.concatenate([[[0]], inner_R1[:-1]]))
        is_new_RL = (step_L >= common_R1) & (step_L < lengths_R1)
        is_placed_RL = (step_L >= shared_R1) & (step_L < inner_R1)
        return cls(
            tokens_RL=tokens_RL,
            group_R=group_R,
            as_given_R=np.argsort(order_R),
            step_L=step_L,
            is_new_RL=is_new_RL,
            distinct_RL=_numbered(is_new_RL),
            is_placed_RL=is_placed_RL,
            place_RL=_numbered(is_placed_RL),
        )

    def num_placed(self, num_groups: int) -> Indices:
        """Placed tokens of each group."""
        counts_R = self.is_placed_RL.sum(axis=1)
        return np.bincount(self.group_R, weights=counts_R, minlength=num_groups).astype(np.int64)


def _in_common_with_predecessor(tokens_RL: Indices, group_R: Indices) -> Indices:
    """How many first tokens each response shares with the one before it, if that is of its group: (R, 1)."""
    same_RL = tokens_RL[1:] == tokens_RL[:-1]
    same_RL &= (tokens_RL[1:] >= 0) & (group_R[1:] == group_R[:-1])[:, None]
    common_R = np.logical_and.accumulate(same_RL, axis=1).sum(axis=1)
    return np.concatenate([[0], common_R])[:, None]


def _numbered(is_new_RL: NDArray[np.bool_]) -> Indices:
    """New entries are counted off row by row; an entry that is not new has the number of the one above it."""
    number_RL = np.where(is_new_RL, np.cumsum(is_new_RL).reshape(is_new_RL.shape) - 1, -1)
    return np.maximum.accumulate(number_RL, axis=0)
