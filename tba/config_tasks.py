"""The settings of each kind of task. `task.kind` tells them apart; what a kind means is in `tba/tasks`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tba.config_section import Device, Section


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


class AdditionTaskConfig(Section):
    """Additions posed as chat questions, from single digits to `max_digits`, generated from a seed."""

    kind: Literal["addition"] = "addition"
    """The kind of task."""
    max_digits: int = Field(2, ge=1, le=9)
    """Digits of the longest numbers that are added; shorter ones are as frequent."""
    instruction: str = "Reply with just the number."
    """Told after the question; may be empty. The last number of the response is its answer either way."""
    num_train: int = Field(2048, ge=1)
    """Training questions, distinct."""
    num_eval: int = Field(256, ge=1)
    """Held-out questions; neither they nor the same with the numbers exchanged are trained on."""
    seed: int = Field(0, ge=0)
    """Seed of the question sets."""


class _WordProblemsConfig(Section):
    """What the tasks with written mathematical problems have in common."""

    data: str | None = None
    """The file (jsonl, json, csv, parquet) or dataset id (`id:subset`) with the training rows. Only an evaluation
    without shots can do without."""
    eval_data: str | None = None
    """The file or dataset id with held-out rows; without it the last `num_eval` training rows are held out."""
    split: str = "train"
    """Split to take of a Hugging Face dataset."""
    eval_split: str = "test"
    """Split to take of `eval_data` when that is a Hugging Face dataset."""
    num_eval: int = Field(256, ge=0)
    """Training rows to hold out when there is no `eval_data`."""
    prompt_style: Literal["chat", "plain"] = "chat"
    """`chat`: messages through the model's chat template. `plain`: text made with `template`, as in the paper."""
    template: str = "[MATH TASK] Problem:\n{question}\n\nSolution:\n"
    """A plain prompt, with `{question}` where the problem goes."""
    instruction: str | None = None
    """Told after the question: how to give the final answer. Left out: told in chats, and not in plain prompts, which
    are for models tuned on their format; empty: not told."""
    system_prompt: str | None = None
    """Put before a chat prompt as a system message."""
    num_shots: int = Field(0, ge=0)
    """Solved examples put before every problem: the first training rows, which are then not trained on."""
    max_solution_lines: int | None = Field(None, ge=1)
    """Train only on problems whose solution has at most so many lines, that of the answer included: easier ones, for
    models that would hardly ever solve the others. What is held out stays as it is."""
    num_problems: int | None = Field(None, ge=1)
    """Train on the first so many of these only: each comes back the sooner. Empty: all."""
    last_number: bool = False
    """Grade a response that marks no final answer by its last number. How many were is in `rewards/by_last_number`."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str) -> str:
        if "{question}" not in value:
            raise ValueError("task.template has no {question} in it: put it where the problem goes")
        return value


class Gsm8kTaskConfig(_WordProblemsConfig):
    """GSM8K in its original format: `question`, and `answer` that ends in `#### n`."""

    kind: Literal["gsm8k"] = "gsm8k"
    """The kind of task."""


class MathTaskConfig(_WordProblemsConfig):
    """MATH in its original format: `problem`, `solution` with `\\boxed`, and perhaps `answer`, `level`, `type`."""

    kind: Literal["math"] = "math"
    """The kind of task."""


def _table(value: Any) -> Any:
    """A table may be written as JSON on the command line, and so may each of its values (`--task.settings.size 3`)."""
    if isinstance(value, str):
        return _json(value)
    return {key: _json(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def _json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value


class ReasoningGymTaskConfig(Section):
    """Any generator of the reasoning-gym package, graded by its own scorer; needs the `reasoning-gym` extra."""

    kind: Literal["reasoning-gym"] = "reasoning-gym"
    """The kind of task."""
    name: str
    """The generator, such as `chain_sum`."""
    settings: Annotated[dict[str, Any], BeforeValidator(_table)] = Field({})
    """The generator's own settings: a TOML table, or `--task.settings.max-terms 4`. Text that reads as JSON is JSON."""
    instruction: str = "Give the final answer between <answer> and </answer>."
    """Told after the question; may be empty. `####` and `\\boxed{}` mark an answer too."""
    prompt_style: Literal["chat", "plain"] = "chat"
    """`chat`: a message through the model's chat template. `plain`: the text alone."""
    system_prompt: str | None = None
    """Put before a chat prompt as a system message."""
    num_train: int = Field(4096, ge=1, le=10_000_000)
    """Training questions to generate; those that repeat another or are held out are left out."""
    num_eval: int = Field(256, ge=1, le=10_000_000)
    """Held-out questions to generate, from seeds that no training set has."""
    seed: int = Field(0, ge=0, le=1_000_000)
    """Seed of the question sets."""


class TldrTaskConfig(Section):
    """Summaries of Reddit posts (TL;DR), scored by a reward model."""

    kind: Literal["tldr"] = "tldr"
    """The kind of task; `task = "tldr"` is short for it."""
    data: str
    """The file or dataset id with the posts: `post`, and where there are any `title`, `subreddit` and `summary`; or
    `prompt` and `completion`, the prompt already written out, as in `trl-lib/tldr`."""
    eval_data: str | None = None
    """The file or dataset id with held-out posts; without it the last `num_eval` training posts are held out."""
    split: str = "train"
    """Split to take of a Hugging Face dataset."""
    eval_split: str = "validation"
    """Split to take of `eval_data` when that is a Hugging Face dataset."""
    num_eval: int = Field(256, ge=0)
    """Held-out posts; 0 with no `eval_data` means no evaluation."""
    prompt_style: Literal["plain", "chat"] = "plain"
    """`plain`: a text that ends in `TL;DR:`, for base and SFT models. `chat`: one message of the user, for instruct
    models."""
    instruction: str = "Summarize this post in one or two sentences. Write the summary only."
    """What `chat` asks for, before the post."""
    max_prompt_tokens: int = Field(512, ge=1)
    """Longer posts are cut at the end of a paragraph, or else of a sentence; those that cannot be cut are left out."""


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
    victim_device: Device = "auto"
    """Device of the victim, such as `cuda:1`. `auto` is that of the Searcher's engine."""
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
    classifier_device: Device = "auto"
    """Device of the classifier, such as `cuda:1`. `auto` is that of the Searcher's engine."""
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
    ArithmeticTaskConfig
    | AdditionTaskConfig
    | Gsm8kTaskConfig
    | MathTaskConfig
    | ReasoningGymTaskConfig
    | TldrTaskConfig
    | RedteamTaskConfig
    | CustomTaskConfig,
    Field(discriminator="kind"),
    BeforeValidator(task_shorthand),
]

TASK_KINDS = frozenset({"arithmetic", "addition", "gsm8k", "math", "reasoning-gym", "tldr", "redteam", "custom"})
"""All of `task.kind`."""

KINDS_WITH_DATA = frozenset({"gsm8k", "math", "tldr", "redteam", "custom"})
"""Kinds of task that have a setting `data`: giving it to one of them does not make it another."""
