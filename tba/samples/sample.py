"""One response with all that a person wants to know of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tba.types import Version


@dataclass(frozen=True)
class GroupRewards:
    """What all responses to the same prompt got that were made together with one."""

    num: int
    lowest: float
    mean: float
    highest: float

    @classmethod
    def of(cls, rewards: Sequence[float]) -> GroupRewards:
        return cls(len(rewards), min(rewards), sum(rewards) / len(rewards), max(rewards))


@dataclass(frozen=True)
class Sample:
    """A response, its prompt and its reward. What is None is not known: older versions of tba did not write it down."""

    prompt_id: str
    prompt: str
    """As the model read it, with the chat template."""
    messages: list[dict[str, str]] | None
    """The prompt as a chat; None if it is plain text."""
    response: str
    reward: float
    reward_parts: Mapping[str, float | None]
    """What each function gave, unweighted, by the function's name; None where it did not apply."""
    group: GroupRewards
    columns: Mapping[str, Any] | None
    """The other columns of the prompt's row in the data."""
    notes: Mapping[str, Any]
    """What reward functions noted with `log_extra`."""
    version: Version
    """The oldest weights that wrote any of it."""
    num_tokens: int
    cut_off: bool
    """Whether the length limit ended it."""
    on_policy: bool
    """Sampled at the policy's own temperature."""
    source: str

    def record(self) -> dict[str, Any]:
        """As one JSON object."""
        return {
            "prompt_id": self.prompt_id,
            "prompt": self.prompt,
            "messages": self.messages,
            "response": self.response,
            "reward": self.reward,
            "reward_parts": dict(self.reward_parts),
            "group": {
                "num_responses": self.group.num,
                "lowest_reward": self.group.lowest,
                "mean_reward": self.group.mean,
                "highest_reward": self.group.highest,
            },
            "columns": None if self.columns is None else dict(self.columns),
            "notes": dict(self.notes),
            **self.version.record(),
            "num_tokens": self.num_tokens,
            "cut_off": self.cut_off,
            "on_policy": self.on_policy,
            "source": self.source,
        }


@dataclass(frozen=True)
class LoggedSample:
    """A sample of the rollout log, with what the run has made of it so far."""

    row: int
    """Its number in the log, from 0."""
    sample: Sample
    merged: Version | None
    """The weights that were trained when it came in."""
    staleness_when_merged: int | None
    age: int
    """Optimizer steps between the weights that made it and those that the run has now."""
    times_trained: int
    """How often steps were trained on it."""

    def record(self) -> dict[str, Any]:
        return {
            "row": self.row,
            **self.sample.record(),
            "merged_step": None if self.merged is None else self.merged.step,
            "staleness_when_merged": self.staleness_when_merged,
            "age": self.age,
            "times_trained": self.times_trained,
        }


def named_parts(names: Sequence[str] | None, parts: Sequence[float]) -> dict[str, float | None]:
    """The parts of a reward under the names of their functions, or numbered where the names are not known."""
    known = list(names or [])
    known += [f"part {number}" for number in range(len(known) + 1, len(parts) + 1)]
    return {name: None if math.isnan(part) else part for name, part in zip(known, parts, strict=True)}


def loaded(text: str | None) -> Any:
    """What JSON of the log says; None for none."""
    return None if text is None else json.loads(text)
