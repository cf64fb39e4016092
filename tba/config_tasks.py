"""The settings of each kind of task. `task.kind` tells them apart; what a kind means is in `tba/tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tba.config_section import Section


class ArithmeticTaskConfig(Section):
    """Chains of additions and subtractions with the working shown, generated from a seed."""

    kind: Literal["arithmetic"] = "arithmetic"
    """The kind of task; `task = "arithmetic"` is short for it."""
    difficulty: Literal["easy", "medium", "hard"] = "easy"
    """`easy`: short chains of single digits. `medium`: longer chains. `hard`: two-digit numbers."""
    num_train: int = Field(4096, ge=1)
    """Training problems, distinct."""
    num_eval: int = Field(256, ge=1)
    """Held-out problems, none of them a training problem."""
    seed: int = Field(0, ge=0)
    """Seed of the problem sets."""


class CustomTaskConfig(Section):
    """Your own prompts: a jsonl, json, csv or parquet file, or a Hugging Face dataset id."""

    kind: Literal["custom"] = "custom"
    """The kind of task; left out, `task.data` implies it."""
    data: str
    """The file or dataset id with the training rows."""
    eval_data: str | None = None
    """The file or dataset id with held-out rows; without it the last `num_eval` training rows are held out."""
    split: str = "train"
    """Split to take of a Hugging Face dataset."""
    eval_split: str = "test"
    """Split to take of `eval_data` when that is a Hugging Face dataset."""
    num_eval: int = Field(64, ge=0)
    """Held-out rows; 0 with no `eval_data` means no evaluation."""
    prompt_column: str = "prompt"
    """Column with the prompt: a string, or chat messages of `role` and `content`."""
    system_prompt: str | None = None
    """Put before every prompt as a system message; plain prompts then become chats."""


class RedteamTaskConfig(Section):
    """Find what makes a model of yours answer badly, before others do: the policy writes prompts that it is given."""

    kind: Literal["redteam"] = "redteam"
    """The kind of task; `task = "redteam"` is short for it."""
    data: str | None = None
    """Rows with an `attacker_prompt`, which the policy continues; empty: one built-in, a list of harmless
    instructions."""
    split: str = "train"
    """Split to take of a Hugging Face dataset."""
    victim: str
    """The model under test: a Hugging Face directory or id of a causal LM."""
    victim_prompt: Literal["auto", "chat", "plain"] = "auto"
    """`chat` puts an attack in the victim's chat template, `plain` gives it as it is, `auto` takes `chat` where there
    is a template."""
    victim_temperature: float = Field(0.7, gt=0)
    """Temperature of the victim's replies."""
    victim_top_p: float = Field(0.92, gt=0, le=1)
    """Nucleus of the victim's replies."""
    victim_tokens: int = Field(30, ge=1)
    """Length limit of a reply."""
    victim_replies: int = Field(5, ge=1)
    """Replies sampled for an attack; its reward is the mean of their log scores."""
    classifier: str
    """What scores replies: a directory or id of a sequence classifier, or of a guard model."""
    classifier_kind: Literal["sequence_classification", "guard"] = "sequence_classification"
    """`guard`: a causal LM that is shown attack and reply in its chat template and answers with a word."""
    classifier_label: str | None = None
    """The label (or the guard's word) that means harmful; needed unless the classifier has a single output."""
    classifier_input: Literal["reply", "attack_and_reply"] = "reply"
    """What a sequence classifier reads. A guard always reads both."""
    guard_prefix: str = ""
    """What a guard writes before its word; Llama Guard 3 writes two line breaks."""
    batch_size: int = Field(64, ge=1)
    """Replies generated, or classified, at a time."""
    cache_size: int = Field(20_000, ge=0)
    """Attacks whose replies and scores are remembered; the ones not asked for longest are forgotten."""
    min_tokens: int = Field(5, ge=0)
    """Attacks with fewer tokens, their end not counted, are not put to the victim and get `short_reward`."""
    short_reward: float = Field(-10.0, le=0)
    """Reward of an attack that is too short or empty; others have the log of a probability."""
    seed: int = Field(0, ge=0)
    """Seeds the victim's replies: the same attack gets the same ones, whenever it is asked."""

    @model_validator(mode="after")
    def _check(self) -> RedteamTaskConfig:
        if self.classifier_kind == "guard" and not self.classifier_label:
            raise ValueError("task.classifier_label is missing: name the word a guard uses, such as unsafe")
        return self


def task_shorthand(value: Any) -> Any:
    """`task = "x"` is short for its kind; settings without one are the user's own data, or arithmetic."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "custom" if "data" in value else "arithmetic", **value}
    return value


TaskConfig = Annotated[
    ArithmeticTaskConfig | CustomTaskConfig | RedteamTaskConfig,
    Field(discriminator="kind"),
    BeforeValidator(task_shorthand),
]

TASK_KINDS = frozenset({"arithmetic", "custom", "redteam"})
"""All of `task.kind`."""
