"""The responses that are under way: what each has so far, in arrays, and the request it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tba.engines.base import Request
from tba.engines.branches import Ints
from tba.engines.numbers import Keys
from tba.types import Response, TokenLogprobs, Tokens, TokenVersions, Version


@dataclass(eq=False)
class Underway:
    """A request that is not finished."""

    request: Request
    key_K: Keys
    """What decides the random numbers of each response."""
    temperature: float
    num_begun: int = 0
    read: Any = None
    """The prompt as the decoder has read it; None: not yet, or with older weights."""
    first_logits_V: Tensor | None = None
    """Of the first token, from that reading."""
    responses: dict[int, Response] = field(default_factory=dict)

    @property
    def num_waiting(self) -> int:
        return self.request.num_responses - self.num_begun

    @property
    def is_finished(self) -> bool:
        return len(self.responses) == self.request.num_responses


class Rows:
    """A row for each response under way. Rows are used again."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._free: list[int] = []
        self._owners: list[tuple[Underway, int]] = []
        self._versions: list[Version] = []
        self._allocate(0)

    def _allocate(self, num_rows: int) -> None:
        shape = (num_rows, self._max_tokens)
        self._tokens_NL = np.zeros(shape, dtype=np.int32)
        self._logprobs_NL = np.zeros(shape, dtype=np.float32)
        self._version_NL = np.zeros(shape, dtype=np.int32)
        self.length_N: Ints = np.zeros(num_rows, dtype=np.int64)
        """Tokens of each row so far."""
        self.key_N: Keys = np.zeros(num_rows, dtype=np.uint64)
        self.temperature_N = np.ones(num_rows)
        self.greedy_N: NDArray[np.bool_] = np.zeros(num_rows, dtype=bool)

    def begin(self, entry: Underway, count: int) -> Ints:
        """The next responses of a request get rows."""
        if len(self._free) < count:
            self._grow(count - len(self._free))
        rows = np.array([self._free.pop() for _ in range(count)], dtype=np.int64)
        for number, row in enumerate(rows.tolist(), entry.num_begun):
            self._owners[row] = (entry, number)
        self.length_N[rows] = 0
        self.key_N[rows] = entry.key_K[entry.num_begun : entry.num_begun + count]
        self.temperature_N[rows] = entry.temperature
        self.greedy_N[rows] = entry.request.greedy
        entry.num_begun += count
        return rows

    def append(self, rows: Ints, tokens: Ints, logprobs: TokenLogprobs, version: Version) -> None:
        """One more token of each of these rows."""
        if not self._versions or self._versions[-1] != version:
            self._versions.append(version)
        at = self.length_N[rows]
        self._tokens_NL[rows, at] = tokens
        self._logprobs_NL[rows, at] = logprobs
        self._version_NL[rows, at] = len(self._versions) - 1
        self.length_N[rows] = at + 1

    def owner(self, row: int) -> tuple[Underway, int]:
        """The request of a row, and which of its responses it is."""
        return self._owners[row]

    def tokens(self, row: int) -> Tokens:
        """What a row has so far."""
        return self._tokens_NL[row, : self.length_N[row]]

    def end(self, row: int) -> tuple[Tokens, TokenLogprobs, TokenVersions]:
        """What a row has in the end. It is free now."""
        n = int(self.length_N[row])
        numbers = self._version_NL[row, :n].tolist()
        runs = tuple((self._versions[number], len(list(run))) for number, run in groupby(numbers))
        self._free.append(row)
        return self._tokens_NL[row, :n].copy(), self._logprobs_NL[row, :n].copy(), runs

    def _grow(self, more: int) -> None:
        n = len(self.length_N)
        before = self._arrays
        self._allocate(n + more)
        for old, new in zip(before, self._arrays, strict=True):
            new[:n] = old
        self._free = [*reversed(range(n, n + more)), *self._free]
        self._owners += [None] * more  # type: ignore[list-item]

    @property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        per_token = (self._tokens_NL, self._logprobs_NL, self._version_NL)
        return (*per_token, self.length_N, self.key_N, self.temperature_N, self.greedy_N)
