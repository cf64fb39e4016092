"""What the supervised commands share: loading, TRL's settings on this machine, progress, and what is left behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash
from rich.table import Table

from tba.extras import install_hint
from tba.launch.processes import use_threads
from tba.runs.bars import Work
from tba.runs.terminal import terminal
from tba.supervised.options import Options
from tba.types import TbaError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback

SUMMARY = "training.json"


def installed(package: str) -> bool:
    return find_spec(package) is not None


def need_trl() -> None:
    if not (installed("trl") and installed("accelerate")):
        raise TbaError(f"this command needs TRL: {install_hint('trl')}")


def use_cores(num_threads: int) -> None:
    """Before torch is imported, which reads the number of threads once."""
    # Neither TRL nor accelerate may ask for a network or a tracker.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    without_scares()
    use_threads(num_threads)


def trainer_settings(options: Options, folder: str, num_examples: int) -> dict[str, Any]:
    """Arguments for any trainer of transformers or TRL: this machine's device, full precision, nothing but training."""
    import torch

    num_steps = max(1, round(options.epochs * -(-num_examples // options.batch_size)))
    return {
        "output_dir": folder,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": False,
        "num_train_epochs": options.epochs,
        "per_device_train_batch_size": options.batch_size,
        "per_device_eval_batch_size": options.batch_size,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": max(1, num_steps // 20),
        "seed": options.seed,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_steps": max(1, num_steps // 50),
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


@contextmanager
def scratch() -> Iterator[str]:
    """Trainers insist on a folder, though they write nothing that is wanted."""
    folder = tempfile.mkdtemp(prefix="tba-supervised-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def share_of(key: str, salt: str) -> float:
    """A number in [0, 1) that depends on nothing but the key: equal keys fall on the same side of any split."""
    return xxhash.xxh3_64_intdigest(f"{salt}/{key}".encode()) / 2**64


class Watch:
    """Follows a trainer of TRL or transformers: the steps it has made, the loss, and the losses for the summary."""

    def __init__(self, work: Work, what: str) -> None:
        self._work = work
        self._started = time.monotonic()
        self.losses: list[float] = []
        work.begin(what, unit="steps")

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self._started, 1)

    def callback(self) -> TrainerCallback:
        from transformers import TrainerCallback

        watch = self

        class Follow(TrainerCallback):
            def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
                if logs and "loss" in logs:
                    watch.losses.append(float(logs["loss"]))

            def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
                loss = f"loss {watch.losses[-1]:.3f}" if watch.losses else ""
                watch._work.reached(state.global_step, loss, state.max_steps)

        return Follow()

    def losses_values(self) -> dict[str, float]:
        return {"loss_first": self.losses[0], "loss_last": self.losses[-1]} if self.losses else {}


def without_scares() -> None:
    """transformers warns of texts that are longer than a model's context as soon as they are encoded. Here they are
    counted and left out, so the warning would only frighten."""
    logging.getLogger("transformers.tokenization_utils_base").addFilter(_is_no_scare)


def _is_no_scare(record: logging.LogRecord) -> bool:
    return "will result in indexing errors" not in record.getMessage()


def quiet(trainer: Any) -> None:
    """Take out the callbacks that print: the phases say it all."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def load_classifier(path: str, seed: int) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence classifier with one output on top of any model, and a padding token that is not the end token.

    Classifiers of decoders read the last token that is not padding. Where padding and end are one, that is not the end.
    """
    from transformers import AutoModelForSequenceClassification, set_seed

    from tba.policy.loading import is_new_head, load_weights, told_in_one_line
    from tba.policy.policy import load_tokenizer

    tokenizer = load_tokenizer(path)
    set_seed(seed)  # the new output layer is random
    what = f"model {path!r}"
    with told_in_one_line(f"{what} cannot be loaded"):
        model: Any = load_weights(AutoModelForSequenceClassification, path, what, may_be_new=is_new_head, num_labels=1)
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        other = tokenizer.unk_token
        if other is not None and other not in (tokenizer.eos_token, tokenizer.bos_token):
            tokenizer.pad_token = other
        else:
            tokenizer.add_special_tokens({"pad_token": "[PAD]"})
        if len(tokenizer) > model.get_input_embeddings().num_embeddings:
            model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    model.config.pad_token_id = tokenizer.pad_token_id
    return model, tokenizer


def fitting(rows: Sequence[dict[str, Any]], max_length: int, *columns: str) -> list[dict[str, Any]]:
    """Rows whose token lists all fit."""
    return [row for row in rows if all(len(row[column]) <= max_length for column in columns)]


def save(options: Options, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """A Hugging Face directory, in float32 safetensors."""
    output = Path(options.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
    except OSError as error:
        raise TbaError(f"cannot write to {output}: {error.strerror or error}") from None
    return output


def conclude(options: Options, command: str, values: dict[str, Any]) -> dict[str, Any]:
    """Write the summary beside the model, show a table."""
    output = Path(options.output)
    summary = {"command": command, **values, "options": options.model_dump(mode="json")}
    (output / SUMMARY).write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", "utf-8")
    console = terminal()
    console.print(f"{command}: {output}", style="italic", soft_wrap=True)
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in values.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    return summary
