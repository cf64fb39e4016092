"""The plain data that travels: prompts, responses, trajectories, groups, and the reports beside them.

Everything here is frozen, picklable and printable, and knows nothing of torch. A new state is a new type: a
`Response` has no reward, a `Trajectory` always has one, so no field is ever filled in later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
TokenLogprobs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with an id. What its reward needs (an answer, other columns) stays with the task."""

    id: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Generated tokens, the log-probabilities they were sampled with, and the weights that made them."""

    tokens: Tokens
    """Sampled token ids. An end-of-sequence token, when one came, is the last of them."""
    token_logprobs: TokenLogprobs
    """Log-probability of each token in the distribution it was really drawn from (tempered)."""
    token_versions: tuple[tuple[int, int], ...]
    """Runs of (policy version, number of tokens), in order. One run unless weights changed in flight."""
    text: str
    finished: bool
    """True if an end-of-sequence token came, False if the length limit cut the response."""

    @property
    def version(self) -> int:
        """The oldest weights that made any of the tokens: what staleness is measured from."""
        return min(version for version, _ in self.token_versions)

    @property
    def logprob(self) -> float:
        return float(self.token_logprobs.sum(dtype=np.float64))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A response with its reward and the reference model's view of it."""

    response: Response
    reward: float
    reward_parts: tuple[float, ...]
    """What each reward function gave, unweighted; NaN where it did not apply."""
    reference_token_logprobs: TokenLogprobs

    @property
    def version(self) -> int:
        return self.response.version


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt and trajectories for it. `source` and `serial` together name it uniquely within a run."""

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    source: str = ""
    serial: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(len(t.response) for t in self.trajectories)


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """One published version of the trainable weights: raw bytes by parameter name."""

    version: int
    tensors: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers a Searcher sends beside its groups: one record of `metrics.jsonl`."""

    kind: str
    """`search`, `eval` or `event`."""
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)


class TbaError(Exception):
    """A mistake the user can fix. Its message is one line that names what to change."""
