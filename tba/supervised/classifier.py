"""`tba classifier`: a classifier of texts with one logit, with transformers' Trainer.

The probability of label 1 is the sigmoid of the logit. Such a model serves as a reward, or as a judge of toxicity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tba.launch.preflight import check_model
from tba.rewards.reward_model import RewardModel
from tba.runs.bars import Work
from tba.runs.wording import counted
from tba.supervised.options import ClassifierOptions
from tba.supervised.shared import (
    Watch,
    conclude,
    fitting,
    load_classifier,
    need_trl,
    quiet,
    save,
    scratch,
    share_of,
    trainer_settings,
    use_cores,
)
from tba.tasks.read_data import read_rows
from tba.types import TbaError

Example = tuple[str, float]


def run(options: ClassifierOptions) -> dict[str, Any]:
    with Work() as work:
        values = _train(options, work)
    return conclude(options, "classifier", values)


def _train(options: ClassifierOptions, work: Work) -> dict[str, Any]:
    work.begin("checking the input", silently=True)
    options.check_output()
    check_model(options.model)
    train, held_out, num_unlabelled = _examples(options)
    need_trl()
    work.begin("importing torch and TRL")
    use_cores(options.num_threads)
    from datasets import Dataset
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    work.begin("loading the model")
    model, tokenizer = load_classifier(options.model, options.seed)
    work.begin("encoding examples")
    # One label of this kind means one logit under binary cross-entropy; transformers' default would be regression.
    model.config.problem_type = "multi_label_classification"
    rows = [{"input_ids": tokenizer(text).input_ids, "label": [label]} for text, label in train]
    fitted = fitting(rows, options.max_length, "input_ids")
    if not fitted:
        raise TbaError(f"no text has at most {options.max_length} tokens: raise --max-length")
    with scratch() as folder:
        watch = Watch(work, f"training on {counted(len(fitted), 'example')}")
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**trainer_settings(options, folder, len(fitted))),
            train_dataset=Dataset.from_list(fitted),
            data_collator=DataCollatorWithPadding(tokenizer),
            callbacks=[watch.callback()],
        )
        quiet(trainer)
        trainer.train()
        work.begin("saving the model, and measuring it on held-out examples")
        output = save(options, model, tokenizer)
        return {
            "num_examples": len(fitted),
            "num_unlabelled": num_unlabelled,
            "num_too_long": len(rows) - len(fitted),
            **watch.losses_values(),
            **_measured(RewardModel(str(output), batch_size=options.batch_size), held_out),
            "seconds": watch.seconds,
        }


def _examples(options: ClassifierOptions) -> tuple[list[Example], list[Example], int]:
    """To train on, held out, and the number of rows without a usable text and label."""
    examples, num_unlabelled = _read(options.data, "train")
    if options.eval_data is not None:
        train, (held_out, more) = examples, _read(options.eval_data, "test")
        num_unlabelled += more
    else:
        apart = [share_of(text, "held out") < options.held_out for text, _ in examples]
        train = [example for example, is_apart in zip(examples, apart, strict=True) if not is_apart]
        held_out = [example for example, is_apart in zip(examples, apart, strict=True) if is_apart]
    train, held_out = train[: options.num_examples], held_out[: options.num_eval]
    for part, name in ((train, "training"), (held_out, "held-out")):
        if len({label for _, label in part}) < 2:
            raise TbaError(f"the {len(part)} {name} rows of {options.data} do not show both labels: give more rows")
    return train, held_out, num_unlabelled


def _read(source: str, split: str) -> tuple[list[Example], int]:
    rows = read_rows(source, split)
    if not any("text" in row and "label" in row for row in rows):
        raise TbaError(f"{source} has no columns 'text' and 'label': it has {', '.join(rows[0])}")
    found = [(row.get("text"), _label(row.get("label"))) for row in rows]
    usable = [(text, label) for text, label in found if isinstance(text, str) and text.strip() and label is not None]
    return usable, len(rows) - len(usable)


def _label(value: Any) -> float | None:
    """0 or 1, also as text (csv) or true and false; None for anything else."""
    return {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}.get(str(value).lower())


def _measured(model: RewardModel, held_out: Sequence[Example]) -> dict[str, Any]:
    texts, labels = zip(*held_out, strict=True)
    # Not "finished": a classified text is not closed by an end token, neither here nor in training.
    scores = model([""] * len(texts), texts, [False] * len(texts))
    right = [(score > 0) == (label > 0.5) for score, label in zip(scores, labels, strict=True)]
    accuracy = float(np.mean(right))
    return {
        "held_out_accuracy": accuracy,
        "held_out_accuracy_se": math.sqrt(accuracy * (1 - accuracy) / len(right)),
        "held_out_auc": auc(scores, labels),
        "num_held_out": len(right),
    }


def auc(scores: Sequence[float], labels: Sequence[float]) -> float:
    """The chance that a positive scores above a negative, ties half: the Mann-Whitney statistic, from mean ranks."""
    values, is_positive = np.asarray(scores, np.float64), np.asarray(labels) > 0.5
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    num_positive, num_negative = int(is_positive.sum()), int((~is_positive).sum())
    above = ranks[is_positive].sum() - num_positive * (num_positive + 1) / 2
    return float(above / (num_positive * num_negative))
