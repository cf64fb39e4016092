"""TRL's GRPO on a model and a task of ours, until a held-out accuracy is reached.

    python -m benchmarks.peers.trl_run --target 0.95 --sections '{"task": {"difficulty": "easy"}}' \
        [--learning-rate 4e-4] [--num-prompts 16] [--vllm]

With `--vllm` it generates with vLLM in its own process (TRL's `colocate`; its server needs CUDA). Sections are those of
a run's settings, over the embedded default unless they name a model. Prints one JSON line. The clock stands still while
it evaluates.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import TrainerCallback

from benchmarks.peers import vllm_generate
from tba.build.models import build_engine
from tba.build.tasks import build_evaluator, build_scorer, build_task
from tba.config.settings import Config, load_config
from tba.engines.stops import stop_tokens
from tba.policy.policy import export_weights, load_model
from tba.rewards.functions import resolve
from tba.tasks.base import Task
from tba.types import Version, WeightUpdate

VLLM_CONTEXT = 256


def main() -> None:
    options = _options()
    if options.vllm:
        os.environ.update(vllm_generate.SETTINGS, OMP_NUM_THREADS=str(options.threads))
    torch.set_num_threads(options.threads)
    config = load_config(None, json.loads(options.sections))
    engine, tokenizer, model = build_engine(config)
    task = build_task(config, tokenizer, model)
    with build_scorer(config, task) as scorer:
        evaluate = build_evaluator(config, engine, scorer, task, tokenizer=tokenizer)

        def accuracy(model: Any, step: int) -> float:
            engine.load(WeightUpdate(Version(0, step), export_weights(model)))
            return float(evaluate().values["accuracy"])

        clock = Clock(accuracy, options)
        _train(config, task, tokenizer, clock, options)
    reached = clock.accuracy >= options.target
    print(json.dumps({"reached": reached, "accuracy": clock.accuracy, "seconds": clock.seconds}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sections", default="{}")
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--schedule", default="constant")
    parser.add_argument("--adam-beta1", type=float, default=0.9)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=400)
    parser.add_argument("--max-seconds", type=float, default=900)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args()


class Clock(TrainerCallback):
    """Counts training time, and stops at the target."""

    def __init__(self, accuracy_of: Callable[[Any, int], float], options: argparse.Namespace) -> None:
        self._accuracy_of = accuracy_of
        self._options = options
        self.seconds = 0.0
        self.accuracy = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._last = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        if state.global_step % self._options.evaluate_every:
            return
        self.seconds += time.perf_counter() - self._last
        self.accuracy = self._accuracy_of(model, state.global_step)
        if self._options.verbose:
            print(f"step {state.global_step}: {self.accuracy:.3f} after {self.seconds:.0f} s", flush=True)
        over = self.seconds > self._options.max_seconds
        control.should_training_stop = over or self.accuracy >= self._options.target
        self._last = time.perf_counter()


def _train(config: Config, task: Task, tokenizer: Any, clock: Clock, options: argparse.Namespace) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    group_size = config.trainer.group_size
    model = load_model(config.model.path, attention="padded")
    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.num_prompts * group_size,
            num_generations=group_size,
            max_completion_length=config.engine.max_new_tokens,
            temperature=config.engine.temperature,
            top_k=0,
            learning_rate=options.learning_rate,
            lr_scheduler_type=options.schedule,
            adam_beta1=options.adam_beta1,
            max_steps=options.max_steps,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            seed=config.run.seed,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            use_vllm=options.vllm,
            vllm_mode="colocate",
            vllm_max_model_length=VLLM_CONTEXT,
        )
        GRPOTrainer(
            model=model,
            reward_funcs=_reward(task, stop_tokens(model, tokenizer)),
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": p.content, "answer": p.columns["answer"]} for p in task.train]),
            processing_class=tokenizer,
            callbacks=[clock],
        ).train()


def _reward(task: Task, stop: set[int]) -> Callable[..., list[float | None]]:
    """The task's own, told what TRL does not tell: whether a completion came to its end."""
    assert task.default_reward is not None
    function = resolve(task.default_reward)

    def reward(completions: Any, completion_ids: Sequence[Sequence[int]], answer: Any, **_: Any) -> list[float | None]:
        finished = [ids[-1] in stop for ids in completion_ids]
        scores: list[float | None] = function(completions=completions, answer=answer, finished=finished)
        return scores

    return reward


if __name__ == "__main__":
    main()
