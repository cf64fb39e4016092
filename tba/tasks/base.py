"""What a task is: prompts to train on, prompts held out, and the columns its reward function reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tba.rewards.functions import RewardSpec
from tba.rewards.scoring import ScoreRequest
from tba.types import Prompt, Response

Content = str | list[dict[str, str]]
"""A prompt as written: plain text, or chat messages of `role` and `content`."""


class Encode(Protocol):
    """Turns written content into the text and token ids the model reads (chat template included)."""

    def __call__(self, content: Content) -> tuple[str, tuple[int, ...]]: ...


@dataclass(frozen=True)
class Problem:
    """A prompt, and the columns a reward function may ask for by name (`answer`, `level`, …)."""

    prompt: Prompt
    content: Content
    """The prompt as its author wrote it: what reward functions see."""
    columns: Mapping[str, Any]
    demonstration: str | None = None
    """A response to learn from or to be compared with, exactly as the model should write it; None: there is none."""

    @property
    def conversational(self) -> bool:
        """True if the prompt is chat messages: completions then reach rewards as messages too (TRL's rule)."""
        return not isinstance(self.content, str)

    def request(self, responses: Sequence[Response]) -> ScoreRequest:
        """Responses to this problem as a question to the reward process."""
        return ScoreRequest(
            prompt_id=self.prompt.id,
            prompt=self.content,
            completions=tuple(r.text for r in responses),
            completion_ids=tuple(tuple(r.tokens.tolist()) for r in responses),
            finished=tuple(r.finished for r in responses),
            columns=self.columns,
            conversational=self.conversational,
        )


@dataclass(frozen=True)
class Task:
    """A named set of problems with its default reward. Plain data: scoring happens in a reward process."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    default_reward: RewardSpec | None
    """The reward used unless the user names another."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Rows left out: why, and how many."""
    observers: tuple[RewardSpec, ...] = ()
    """Functions called like rewards beside the default one: they weigh nothing and appear in the metrics."""
    breakdown: tuple[str, ...] = ()
    """Columns by whose values an evaluation breaks its accuracy down."""
