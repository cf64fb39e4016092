"""`tba reward-model`: a reward model from preference pairs, with TRL's RewardTrainer.

Pairs are split by prompt, never within one: a model that is to judge another shares no prompt with it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any

from tba.launch.preflight import check_model
from tba.rewards.reward_model import RewardModel, encode_scored
from tba.runs.bars import Work
from tba.runs.wording import counted
from tba.supervised.options import RewardModelOptions
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
from tba.tasks.base import Problem, TaskSettings, not_encoded
from tba.types import TbaError


def run(options: RewardModelOptions) -> dict[str, Any]:
    with Work() as work:
        values = _train(options, work)
    return conclude(options, "reward-model", values)


def _train(options: RewardModelOptions, work: Work) -> dict[str, Any]:
    work.begin("checking the input", silently=True)
    options.check_output()
    check_model(options.model)
    # Who is held out is decided here, by prompt; the task's own split by rows would tear pairs of one prompt apart.
    settings = options.task.without_held_out()
    for number, problem in enumerate(settings.load(not_encoded).train, 1):
        _check_pair(problem, f"pair {number} ({problem.prompt.id})")
    need_trl()
    work.begin("importing torch and TRL")
    use_cores(options.num_threads)
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    from tba.tasks.encoding import encoder

    work.begin("loading the model")
    model, tokenizer = load_classifier(options.model, options.seed)
    work.begin("encoding pairs")
    task = settings.load(encoder(tokenizer))
    train, held_out = split_pairs(task.train, options.fold, options.held_out)
    train = train[: options.num_examples]
    if not train or not held_out:
        raise TbaError(
            f"fold {options.fold} has {len(train)} pairs to train on and {len(held_out)} held out: give more pairs"
        )

    def encoded(problem: Problem) -> dict[str, list[int]]:
        chosen, rejected = _completions(problem, options.task)
        return {
            "chosen_ids": encode_scored(tokenizer, problem.content, chosen, True, options.model),
            "rejected_ids": encode_scored(tokenizer, problem.content, rejected, True, options.model),
        }

    rows = [encoded(problem) for problem in train]
    fitted = fitting(rows, options.max_length, "chosen_ids", "rejected_ids")
    if not fitted:
        raise TbaError(f"no pair has at most {options.max_length} tokens: raise --max-length")
    with scratch() as folder:
        watch = Watch(work, f"training on {counted(len(fitted), 'pair')} of fold {options.fold}")
        trainer = RewardTrainer(
            model=model,
            args=RewardConfig(
                **trainer_settings(options, folder, len(fitted)),
                max_length=None,
                disable_dropout=True,
                # The loss knows differences only; this keeps the scores themselves near 0.
                center_rewards_coefficient=0.01,
            ),
            train_dataset=Dataset.from_list(fitted),
            processing_class=tokenizer,
            callbacks=[watch.callback()],
        )
        quiet(trainer)
        trainer.train()
        work.begin("saving the model, and measuring it on held-out pairs")
        output = save(options, model, tokenizer)
        return {
            "num_pairs": len(fitted),
            "num_prompts": len({prompt_key(problem) for problem in train}),
            "num_too_long": len(rows) - len(fitted),
            **watch.losses_values(),
            **_measured(RewardModel(str(output), batch_size=options.batch_size), held_out, options),
            "seconds": watch.seconds,
        }


def split_pairs(problems: Sequence[Problem], fold: str, held_out: float) -> tuple[list[Problem], list[Problem]]:
    """Those of the fold, to train on and held out. It depends on prompts only: folds are disjoint whatever the seed."""
    index, count = map(int, fold.split("/"))
    ours = [p for p in problems if int(share_of(prompt_key(p), "fold") * count) == index]
    apart = [share_of(prompt_key(p), "held out") < held_out for p in ours]
    train = [p for p, is_apart in zip(ours, apart, strict=True) if not is_apart]
    return train, [p for p, is_apart in zip(ours, apart, strict=True) if is_apart]


def prompt_key(problem: Problem) -> str:
    """What pairs of one prompt have in common: the id of their row, if it has one, or else the prompt itself."""
    id = problem.columns.get("id")
    return id if isinstance(id, str) else json.dumps(problem.content)


def _check_pair(problem: Problem, place: str) -> None:
    for column in ("chosen", "rejected"):
        value = problem.columns.get(column)
        if not value or not isinstance(value, (str, list)):
            raise TbaError(f"{place} has no {column!r}: a pair needs chosen and rejected, both text")


def _completions(problem: Problem, task: TaskSettings) -> list[Any]:
    """Chosen and rejected as a reward function would get them."""
    texts = []
    for value in (problem.columns["chosen"], problem.columns["rejected"]):
        text = value if isinstance(value, str) else str(value[-1].get("content", ""))
        texts.append(task.as_response(text))
    return [[{"role": "assistant", "content": t}] for t in texts] if problem.conversational else texts


def _measured(model: RewardModel, held_out: Sequence[Problem], options: RewardModelOptions) -> dict[str, Any]:
    """What the model as saved makes of held-out pairs; a tie is half right.

    Mean and deviation of the scores are for `reward.normalize_mean` and `reward.normalize_std`.
    """
    pairs = [(problem, _completions(problem, options.task)) for problem in held_out[: options.num_eval]]
    scores = [model([p.content, p.content], completions, [True, True]) for p, completions in pairs]
    right = [(chosen > rejected) + 0.5 * (chosen == rejected) for chosen, rejected in scores]
    chosen_scores = [chosen for chosen, _ in scores]
    return {
        "held_out_accuracy": statistics.fmean(right),
        "held_out_accuracy_se": statistics.pstdev(right) / math.sqrt(len(right)),
        "num_held_out": len(right),
        "chosen_score_mean": statistics.fmean(chosen_scores),
        "score_std": statistics.pstdev([score for pair in scores for score in pair]),
    }
