"""TRL's GRPO on the embedded model and the arithmetic task, until a held-out accuracy is reached.

    python -m tba.benchmarks.peers.trl_run --target 0.95 [--seed 0] [--learning-rate 4e-4] [--num-prompts 16]

Prints one JSON line. The clock stands still while it evaluates.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from tba.build import build_evaluator, build_scorer
from tba.config import Config
from tba.encoding import encoder
from tba.engines.transformers import TransformersEngine
from tba.policy import export_weights, load_model, load_tokenizer
from tba.rewards.answer import final_answer
from tba.tasks import load_task
from tba.types import WeightUpdate

MAX_SECONDS = 900


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    config = Config.embedded(
        run={"seed": options.seed},
        task={"difficulty": options.difficulty},
        engine={"max_new_tokens": options.max_new_tokens},
    )
    tokenizer = load_tokenizer("arithmetic")
    task = load_task(config.task, encoder(tokenizer))
    engine = TransformersEngine(
        load_model("arithmetic"), tokenizer, temperature=1.0, max_new_tokens=options.max_new_tokens, seed=0
    )
    with build_scorer(config, task) as scorer:
        evaluate = build_evaluator(config, engine, scorer, task, tokenizer=tokenizer)

        def accuracy(model: Any, step: int) -> float:
            engine.load(WeightUpdate(step, export_weights(model)))
            return float(evaluate().values["accuracy"])

        clock = Clock(accuracy, options)
        rows = [{"prompt": p.content, "answer": p.columns["answer"]} for p in task.train]
        _train(rows, tokenizer, clock, options)
    reached = clock.accuracy >= options.target
    print(json.dumps({"reached": reached, "accuracy": clock.accuracy, "seconds": clock.seconds}), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    parser.add_argument("--num-prompts", type=int, default=16)
    parser.add_argument("--difficulty", default="medium")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--evaluate-every", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=400)
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
        control.should_training_stop = self.accuracy >= self._options.target or self.seconds > MAX_SECONDS
        self._last = time.perf_counter()


def _train(rows: list[dict[str, Any]], tokenizer: Any, clock: Clock, options: argparse.Namespace) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=options.num_prompts * 16,
            num_generations=16,
            max_completion_length=options.max_new_tokens,
            temperature=1.0,
            top_k=0,
            learning_rate=options.learning_rate,
            lr_scheduler_type="constant",
            max_steps=options.max_steps,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            seed=options.seed,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
        )
        GRPOTrainer(
            model=load_model("arithmetic", attention="padded"),
            reward_funcs=final_answer,
            args=settings,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[clock],
        ).train()


if __name__ == "__main__":
    main()
