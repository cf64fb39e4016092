"""`tba sft`: imitation of a task's demonstrations, with TRL's SFTTrainer.

Prompts are encoded by the code that encodes them for training and evaluation, and handed over as tokens: what follows
starts from exactly the prompts this model has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tba.launch.preflight import check_model
from tba.policy.names import read_chat_template
from tba.runs.bars import Work
from tba.runs.wording import counted
from tba.supervised.options import SftOptions
from tba.supervised.shared import (
    Watch,
    conclude,
    fitting,
    need_trl,
    quiet,
    save,
    scratch,
    trainer_settings,
    use_cores,
)
from tba.tasks.base import Problem, not_encoded
from tba.types import TbaError


def run(options: SftOptions) -> dict[str, Any]:
    with Work() as work:
        values = _train(options, work)
    return conclude(options, "sft", values)


def _train(options: SftOptions, work: Work) -> dict[str, Any]:
    work.begin("checking the input", silently=True)
    options.check_output()
    check_model(options.model)
    if options.chat_template is not None:
        read_chat_template(options.chat_template)
    _check_demonstrations(options.task.load(not_encoded).train)
    need_trl()
    work.begin("importing torch and TRL")
    use_cores(options.num_threads)
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from tba.policy.policy import load_model, load_tokenizer
    from tba.tasks.encoding import encoder

    tokenizer = load_tokenizer(options.model, chat_template=options.chat_template)
    if tokenizer.eos_token_id is None:
        raise TbaError(f"the tokenizer of {options.model!r} has no end-of-sequence token: a response could not end")
    work.begin("encoding examples")
    task = options.task.load(encoder(tokenizer, options.chat_template_kwargs))
    examples = [_example(p, tokenizer) for p in task.train if p.demonstration]
    train = fitting(examples, options.max_length, "input_ids")[: options.num_examples]
    if not train:
        raise TbaError(f"no example has at most {options.max_length} tokens: raise --max-length")
    held_out = [_example(p, tokenizer) for p in task.held_out if p.demonstration]
    held_out = fitting(held_out, options.max_length, "input_ids")[: options.num_eval]
    work.begin("loading the model")
    model = load_model(options.model, attention="padded")
    with scratch() as folder:
        watch = Watch(work, f"training on {counted(len(train), 'example')}")
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                **trainer_settings(options, folder, len(train)),
                max_length=None,
                packing=False,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=Dataset.from_list(train),
            processing_class=load_tokenizer(options.model),  # a second one, because TRL changes it
            callbacks=[watch.callback()],
        )
        quiet(trainer)
        trainer.train()
        values = {
            "num_examples": len(train),
            "num_without_demonstration": sum(not p.demonstration for p in task.train),
            "num_too_long": len(examples) - len(fitting(examples, options.max_length, "input_ids")),
            **watch.losses_values(),
        }
        if held_out:
            work.begin(f"measuring the loss on {counted(len(held_out), 'held-out example')}")
            measured = trainer.evaluate(Dataset.from_list(held_out))
            values |= {"held_out_loss": measured["eval_loss"], "num_held_out": len(held_out)}
        values["seconds"] = watch.seconds
    work.begin("saving the model")
    save(options, model, tokenizer)
    return values


def _check_demonstrations(problems: Sequence[Problem]) -> None:
    if not any(problem.demonstration for problem in problems):
        raise TbaError("no row has a demonstration: give a `completion` to each prompt, or a task that has them")


def _example(problem: Problem, tokenizer: Any) -> dict[str, list[int]]:
    """Loss on the demonstration and its end only. Labels are marked by place, not by token: padding may be the end."""
    prompt = list(problem.prompt.tokens)
    answer = [*tokenizer(problem.demonstration, add_special_tokens=False).input_ids, tokenizer.eos_token_id]
    return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer}
