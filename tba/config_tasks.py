"""The settings of each kind of task. `task.kind` tells them apart; what a kind means is in `tba/tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

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
    prompt_format: Literal["plain", "chat"] = "plain"
    """`plain`: a text that ends in `TL;DR:`, for base and SFT models. `chat`: one message of the user, for instruct
    models."""
    instruction: str = "Summarize this post in one or two sentences. Write the summary only."
    """What `chat` asks for, before the post."""
    max_prompt_tokens: int = Field(512, ge=1)
    """Longer posts are cut at the end of a paragraph, or else of a sentence; those that cannot be cut are left out."""


def task_shorthand(value: Any) -> Any:
    """`task = "x"` is short for its kind; settings without one are the user's own data, or arithmetic."""
    if isinstance(value, str):
        return {"kind": value}
    if isinstance(value, Mapping) and "kind" not in value:
        return {"kind": "custom" if "data" in value else "arithmetic", **value}
    return value


TaskConfig = Annotated[
    ArithmeticTaskConfig | CustomTaskConfig | TldrTaskConfig,
    Field(discriminator="kind"),
    BeforeValidator(task_shorthand),
]

TASK_KINDS = frozenset({"arithmetic", "custom", "tldr"})
"""All of `task.kind`."""
