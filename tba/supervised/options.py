"""What `tba sft`, `tba reward-model` and `tba classifier` can be told. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError, field_validator

from tba.config.faults import in_one_line
from tba.config.section import Section, Table
from tba.config.text import parse_overrides
from tba.policy.names import named_model
from tba.tasks import TaskConfig
from tba.types import TbaError


class Options(Section):
    """What the three commands have in common."""

    model: str
    """The model to start from: a Hugging Face directory or id. `all-MiniLM-L6-v2` may come from its package."""
    output: str
    """Folder that the trained model is written to. It must not exist yet, or be empty."""
    epochs: float = Field(1.0, gt=0)
    """Passes over the data."""
    batch_size: int = Field(8, ge=1)
    """Examples in each optimizer step."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate of AdamW. It rises in a short warm-up and then falls linearly to 0."""
    max_length: int = Field(1024, ge=2)
    """Longest example, in tokens. Longer ones are left out and counted."""
    num_examples: int | None = Field(None, ge=1)
    """Train on this many examples only, the first ones. If empty, train on all."""
    num_eval: int = Field(256, ge=1)
    """Most held-out examples that the trained model is measured on."""
    seed: int = Field(0, ge=0)
    """Seed of the order of the data and of new weights. Which examples are held out does not depend on it."""
    num_threads: int = Field(0, ge=0)
    """Number of compute threads. With 0, all cores are used."""

    def check_output(self) -> Path:
        path = Path(self.output)
        if path.is_file() or (path.is_dir() and any(path.iterdir())):
            raise TbaError(f"{path} exists already: choose another --output, or remove it")
        return path


class SftOptions(Options):
    """Imitation: the model learns to write the demonstrations of a task (TRL's SFTTrainer)."""

    task: TaskConfig
    """The task whose demonstrations are learnt, with its settings. `--data FILE` alone means rows of `prompt` and
    `completion`."""
    chat_template: str | None = None
    """A file with a chat template (Jinja) to use in place of the model's own. It is saved with the trained model."""
    chat_template_kwargs: Table = Field({})
    """What the chat template is told besides the messages, such as `--chat-template-kwargs.enable-thinking false`."""


class RewardModelOptions(Options):
    """A reward model from pairs of a chosen and a rejected response (TRL's RewardTrainer)."""

    task: TaskConfig
    """The task whose rows have pairs, with its settings. `--data FILE` alone means rows of `prompt`, `chosen` and
    `rejected`; with `--task tldr` they have a `post` in place of the `prompt`."""
    fold: str = "0/1"
    """The part of the prompts to train on, as INDEX/COUNT. Two models, one to train with and one to judge with, can be
    made from the halves `0/2` and `1/2`."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of the prompts, between 0 and 1, that is not trained on and is kept for measuring accuracy."""

    @field_validator("fold")
    @classmethod
    def _check_fold(cls, value: str) -> str:
        index, _, count = value.partition("/")
        if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
            raise ValueError(f"fold = {value!r} is not of the form INDEX/COUNT: 0/2 and 1/2 are the two halves")
        return value


class ClassifierOptions(Options):
    """A classifier of texts with one logit, from rows of `text` and a `label` of 0 or 1 (transformers' Trainer)."""

    data: str
    """The file or dataset id with the training rows."""
    eval_data: str | None = None
    """The file or dataset id with held-out rows. If empty, a share of the training rows is held out; see
    `--held-out`."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of the training rows, between 0 and 1, that is held out if there is no `--eval-data`."""


KINDS: dict[str, type[Options]] = {
    "sft": SftOptions,
    "reward-model": RewardModelOptions,
    "classifier": ClassifierOptions,
}

Some = TypeVar("Some", bound=Options)


def parse_options(kind: type[Some], model: str | None, arguments: Sequence[str]) -> Some:
    """The command line to checked options; every fault is one line."""
    settings: dict[str, Any] = parse_overrides(arguments)
    if model is None:
        raise TbaError("name the model to start from, before the options")
    if "task" in kind.model_fields:
        settings = _with_task(settings)
    try:
        return kind.model_validate({"model": named_model(model), **settings})
    except ValidationError as error:
        command = next(name for name, options in KINDS.items() if options is kind)
        raise TbaError(in_one_line(error, list(kind.model_fields), f"tba {command} --help")) from None


def _with_task(settings: dict[str, Any]) -> dict[str, Any]:
    """`--data` is short for `--task.data`; without a `--task` the rows are the user's own."""
    task = settings.pop("task", {})
    task = {"kind": task} if isinstance(task, str) else task
    if "data" in settings:
        task["data"] = settings.pop("data")
    if not task:
        raise TbaError("data is missing: name a file with --data, or a task with --task")
    return {**settings, "task": task}


def options_text(kind: type[Options]) -> str:
    """The options of a command, for its help."""
    lines = [" ".join((kind.__doc__ or "").split()), ""]
    for name, field in kind.model_fields.items():
        if name == "model":
            continue
        default = "" if field.is_required() or field.default in (None, {}) else f"  [{field.default}]"
        lines += [f"  --{name.replace('_', '-')}{default}", f"      {' '.join((field.description or '').split())}"]
    return "\n".join(lines) + "\n"
