"""What a task is: prompts to train on, prompts held out, and the columns its reward function reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tba.types import Prompt

Content = str | list[dict[str, str]]
"""A prompt as written: plain text, or chat messages of `role` and `content`."""


class Encode(Protocol):
    """Turns written content into the text and token ids the model reads (chat template included)."""

    def __call__(self, content: Content) -> tuple[str, tuple[int, ...]]: ...


@dataclass(frozen=True)
class Problem:
    """A prompt, and the columns a reward function may ask for by name (`answer`, `level`, …)."""

    prompt: Prompt
    columns: Mapping[str, Any]
    conversational: bool = False
    """True if the prompt is chat messages: completions then reach rewards as messages too (TRL's rule)."""


@dataclass(frozen=True)
class Task:
    """A named set of problems with its default reward. Plain data: scoring happens in a reward process."""

    name: str
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    default_reward: str | None
    """Import path of the reward function used unless the user names another."""
    num_skipped: int = 0
    """Rows left out because their prompt does not fit the model's context."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
