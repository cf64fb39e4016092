"""Where time goes: `python -m benchmarks profile` writes Chrome traces of a training step and of generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import profile
from transformers import PreTrainedModel

from benchmarks.models import balance_of, group, large, prompts, small
from tba.engines.base import generate
from tba.engines.transformers import TransformersEngine
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import Policy, load_tokenizer

NUM_SHOWN = 12


def run_profile(output: Path, model_name: str) -> None:
    """`model_name`: `arithmetic`, or `large` for SmolLM2-135M's shape."""
    torch.set_num_threads(1)
    output.mkdir(parents=True, exist_ok=True)
    model = small() if model_name == "arithmetic" else large(6)
    model.set_attn_implementation(SHARED_PROMPT)
    # Generation last: its engine replaces the model's linear layers.
    for name, make in (("training", _training_step), ("generation", _generation)):
        work = make(model)
        work()  # warm
        with profile() as profiler:
            work()
        path = output / f"{name}.json"
        profiler.export_chrome_trace(str(path))
        _show(name, profiler, path)


def _training_step(model: PreTrainedModel) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    [prompt] = prompts(1, 64, model.config.vocab_size, rng)
    policy = Policy(model)
    data = group(prompt, np.linspace(16, 64, 16).astype(np.int64), model.config.vocab_size, rng)

    def step() -> None:
        balance_of(policy, data, 0.1).value.backward()
        model.zero_grad()

    return step


def _generation(model: PreTrainedModel) -> Callable[[], None]:
    engine = TransformersEngine(model, load_tokenizer("arithmetic"), temperature=1.0, max_new_tokens=16, seed=0)
    asked = prompts(8, 32, model.config.vocab_size, np.random.default_rng(0))

    def batch() -> None:
        generate(engine, asked, 16)

    return batch


def _show(name: str, profiler: profile, path: Path) -> None:
    events = sorted(profiler.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    title = f"{name}: {total / 1e3:.0f} ms; trace in {path}"
    table = Table("operation", "share", "calls", title=title, title_justify="left")
    for event in events[:NUM_SHOWN]:
        table.add_row(event.key, f"{event.self_cpu_time_total / total:.1%}", str(event.count))
    Console(highlight=False).print(table)
