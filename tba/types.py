"""The plain data that travels: prompts, responses, trajectories, groups, and the reports beside them.

Everything here is frozen, picklable and printable, and knows nothing of torch. A new state is a new type: a
`Response` has no reward, a `Trajectory` always has one, so no field is ever filled in later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
TokenLogprobs = NDArray[np.float32]


class Version(NamedTuple):
    """Which weights: those after `step` optimizer steps of an epoch. A later epoch is newer, whatever its step.

    A run is in epoch 0 until it is resumed by a launcher that does not repeat the same weights; see `tba.learn.epochs`.
    """

    epoch: int
    step: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.step}" if self.epoch else str(self.step)

    @classmethod
    def read(cls, value: int | Sequence[int]) -> Version:
        """A version as JSON holds it. A number alone is a step of epoch 0: there were no epochs in tba 0.1."""
        return cls(0, value) if isinstance(value, int) else cls(*value)

    def record(self) -> dict[str, int]:
        """As records of `metrics.jsonl` name it: by the step, with the epoch beside it unless it is 0."""
        return {"version": self.step} | ({"epoch": self.epoch} if self.epoch else {})


@dataclass(frozen=True)
class SearcherName:
    """Which Searcher: its place among the Searchers of a run, and how often that place was taken before.

    As text it is the source of the groups and reports that it sends, `searcher-0`, then `searcher-0.1` …: no two
    starts share a source. All of them show what they do under one name of the process.
    """

    index: int
    incarnation: int = 0

    @property
    def process(self) -> str:
        return f"searcher-{self.index}"

    def __str__(self) -> str:
        return f"{self.process}.{self.incarnation}" if self.incarnation else self.process

    @classmethod
    def read(cls, source: str) -> SearcherName:
        """The Searcher that sent something, by its source."""
        index, _, incarnation = source.removeprefix("searcher-").partition(".")
        return cls(int(index), int(incarnation or 0))


TokenVersions = tuple[tuple[Version | None, int], ...]
"""Runs of (version, number of tokens). None: the policy did not write them."""

NEVER_PUBLISHED = Version(-1, -1)
"""The weights that an engine was made with: older than any that are published."""


class Steps(NamedTuple):
    """A range of steps of one epoch, both ends included."""

    first: int
    last: int | None
    """None: without end."""

    def includes(self, step: int) -> bool:
        return step >= self.first and (self.last is None or step <= self.last)

    def within(self, other: Steps) -> Steps:
        """The steps that are in both."""
        ends = [last for last in (self.last, other.last) if last is not None]
        return Steps(max(self.first, other.first), min(ends, default=None))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A question with an id. What its reward needs (an answer, other columns) stays with the task."""

    id: str
    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """Generated tokens, the log-probabilities they were sampled with, and the weights that made them.

    Some of the tokens may be text that the policy did not write, such as the answer of a tool. At least one is its own.
    """

    tokens: Tokens
    """Token ids. An end-of-sequence token, when one came, is the last of them."""
    token_logprobs: TokenLogprobs
    """Log-probability of each token in the distribution it was really drawn from (tempered, and without the tokens that
    `engine.top_p` and its kin leave out); 0 where the policy did not write it."""
    token_versions: TokenVersions
    """In order. One run unless weights changed in flight or others wrote a part."""
    text: str
    finished: bool
    """True if an end-of-sequence token came, False if the length limit cut the response."""
    on_policy: bool = True
    """Sampled at the policy's own temperature, not hotter or colder for exploration."""

    @property
    def version(self) -> Version:
        """The oldest weights that made any of the tokens: what staleness is measured from."""
        return min(version for version, _ in self.token_versions if version is not None)

    @property
    def newest_version(self) -> Version:
        return max(version for version, _ in self.token_versions if version is not None)

    @property
    def written(self) -> NDArray[np.bool_]:
        """For each token, whether the policy wrote it."""
        return np.repeat(
            [version is not None for version, _ in self.token_versions], [num for _, num in self.token_versions]
        )

    @property
    def num_written(self) -> int:
        return sum(num for version, num in self.token_versions if version is not None)

    @property
    def logprob(self) -> float:
        return float(self.token_logprobs.sum(dtype=np.float64))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class ScoredResponse:
    """A response with its reward, which the reference model has not read yet."""

    response: Response
    reward: float
    reward_parts: tuple[float, ...]
    """What each reward function gave, unweighted; NaN where it did not apply."""

    def trajectory(self, reference_token_logprobs: TokenLogprobs) -> Trajectory:
        return Trajectory(self.response, self.reward, self.reward_parts, reference_token_logprobs)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A response with its reward and the reference model's view of it."""

    response: Response
    reward: float
    reward_parts: tuple[float, ...]
    """What each reward function gave, unweighted; NaN where it did not apply."""
    reference_token_logprobs: TokenLogprobs

    @property
    def version(self) -> Version:
        return self.response.version


@dataclass(frozen=True, slots=True)
class About:
    """What people who read the rollout log want to know of a group. Nothing is trained on it."""

    reward_names: tuple[str, ...] = ()
    """The functions that gave the parts of its rewards."""
    notes: tuple[str, ...] = ()
    """For each trajectory what functions noted with `log_extra`, as a JSON object; empty if none noted anything."""


@dataclass(frozen=True, slots=True)
class PromptRow:
    """The row of the data that a prompt comes from, for people who read the rollout log."""

    columns: str
    """Its columns but for the prompt, as a JSON object of bounded size."""
    messages: str | None
    """The chat messages of the prompt as JSON; None if the prompt is plain text."""


@dataclass(frozen=True, slots=True)
class Group:
    """One prompt and trajectories for it. `source` and `serial` together name it uniquely within a run."""

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    source: str = ""
    serial: int = 0
    about: About = About()

    @property
    def num_tokens(self) -> int:
        return sum(len(t.response) for t in self.trajectories)


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group that the reference model has not read yet: what a Searcher without a reference hands up."""

    prompt: Prompt
    responses: tuple[ScoredResponse, ...]
    on_policy: bool
    """Sampled at the policy's own temperature."""
    source: str = ""
    serial: int = 0
    about: About = About()


@dataclass(frozen=True, slots=True)
class Unused:
    """A group that a Searcher did not hand up, because its rewards were all equal or could not be used."""

    prompt_id: str
    num_responses: int


@dataclass(frozen=True, slots=True)
class PromptSpreads:
    """How much rewards differ between responses to one prompt, for each prompt that was explored."""

    keys: NDArray[np.uint64]
    """`prompt_key` of each prompt."""
    num: NDArray[np.float64]
    """Responses that count, older ones less than newer ones."""
    squares: NDArray[np.float64]
    """Sum over these responses of the squared difference to the mean reward of their group."""

    def to_bytes(self) -> bytes:
        return b"".join(part.tobytes() for part in (self.keys, self.num, self.squares))

    @classmethod
    def from_bytes(cls, data: bytes) -> PromptSpreads:
        keys, num, squares = np.frombuffer(data, np.uint64).reshape(3, -1)
        return cls(keys, num.view(np.float64), squares.view(np.float64))


def prompt_key(prompt_id: str) -> int:
    """64 bits that stand for a prompt."""
    return xxhash.xxh3_64_intdigest(prompt_id.encode())


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """One published version of the trainable weights: raw bytes by parameter name."""

    version: Version
    bytes_by_name: Mapping[str, NDArray[np.uint8]]
    note: bytes = b""
    """What the Trainer told Searchers with this version: `PromptSpreads` where they choose prompts, else nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers a Searcher sends beside its groups: one record of `metrics.jsonl`."""

    kind: str
    """`search`, `eval` or `event`."""
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    is_last: bool = False
    """The Searcher sends nothing after it."""


class TbaError(Exception):
    """A mistake the user can fix. Its message is one line that names what to change."""


def first_line(error: BaseException) -> str:
    """What an error of a library says, for a message of one line: its first line, and the next if that is only a
    heading. An error that says nothing gives the name of its type."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(line.strip() for line in (lines[:2] if lines[0].endswith(":") else lines[:1])).rstrip(".")
