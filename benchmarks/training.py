"""The Trainer's forward and backward pass against TRL's GRPO step on the same group.

TRL's loss is given our advantages, so that both compute the same gradient up to a known
factor, which is checked: a faster step that computes something else would be no gain.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from benchmarks.machine import one_core, peak_gflops
from benchmarks.memory import reset_peak, resident
from benchmarks.models import LARGE, balance_of, flops_a_token, group, large, prompts
from benchmarks.report import Row, alternate, at_least, at_most, ratio_of, seconds
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import Policy
from tba.testing import character_tokenizer
from tba.types import Group

PROMPT, K, SHORTEST, LONGEST = 120, 16, 30, 180
BETA = 0.1


def run(full: bool) -> list[Row]:
    num_layers, repeats = (30, 2) if full else (4, 2)
    with one_core():
        return _against_trl(num_layers, repeats)


def _against_trl(num_layers: int, repeats: int) -> list[Row]:
    # First, while this process holds no models of its own: the other takes gigabytes.
    peak_ours, peak_other = _peak("ours", num_layers), _peak("trl", num_layers)
    data = _group(large(1).config.vocab_size)
    num_tokens = sum(len(t.response) for t in data.trajectories)
    ours = _Ours(large(num_layers), data)
    other = _Trl(large(num_layers), data, ours.advantages())
    difference = _gradient_difference(ours, other)
    mine, theirs = alternate(lambda: _timed(ours), lambda: _timed(other), repeats)
    ratio, spread = ratio_of(theirs, mine)
    shape = f"prompt {PROMPT}, K={K}, responses {SHORTEST}-{LONGEST}, {num_layers} layers of {LARGE}"
    computed = PROMPT + num_tokens - K
    achieved = 3 * computed * flops_a_token(ours.model) / float(np.median(mine)) / 1e9
    return [
        at_least(
            3.0,
            f"training pass, {shape}",
            f"{num_tokens / np.median(mine):,.0f} tok/s",
            f"TRL's GRPO step, {num_tokens / np.median(theirs):,.0f} tok/s",
            ratio,
            spread,
            f"{achieved:.0f} GFLOP/s in weights' products, {achieved / peak_gflops():.0%} of the core's peak; "
            f"gradients differ by {difference:.1e}",
        ),
        at_most(
            0.5,
            "peak memory of that pass",
            f"{peak_ours:,.0f} MB",
            f"TRL's GRPO step, {peak_other:,.0f} MB",
            peak_ours / peak_other,
            "one process each",
        ),
    ]


class _Ours:
    def __init__(self, model: PreTrainedModel, data: Group) -> None:
        model.set_attn_implementation(SHARED_PROMPT)
        self.model = model
        self._policy = Policy(model)
        self._group = data

    def __call__(self) -> None:
        balance_of(self._policy, self._group, BETA).value.backward()

    def advantages(self) -> Tensor:
        with torch.no_grad():
            return balance_of(self._policy, self._group, BETA).advantage_GK[0]


class _Trl:
    """TRL's own loss on the group as TRL lays it out. Its loss is divided by the length limit; ours is not."""

    def __init__(self, model: PreTrainedModel, data: Group, advantages: Tensor) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        tokenizer = character_tokenizer("0123456789")
        self._folder = tempfile.TemporaryDirectory()
        settings = GRPOConfig(
            output_dir=self._folder.name,
            per_device_train_batch_size=K,
            num_generations=K,
            max_completion_length=LONGEST,
            loss_type="dr_grpo",
            beta=0.0,
            gradient_checkpointing=False,
            use_cpu=True,
            bf16=False,
            report_to="none",
            disable_tqdm=True,
            save_strategy="no",
        )
        self._trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **columns: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["1"] * K}),
            processing_class=tokenizer,
        )
        self.model: PreTrainedModel = self._trainer.model
        self.model.eval()  # no dropout in either
        self._trainer.current_gradient_accumulation_steps = 1
        responses = [torch.from_numpy(t.response.tokens.astype(np.int64)) for t in data.trajectories]
        prompt = torch.tensor(data.prompt.tokens)
        self._inputs = {
            "prompt_ids": prompt.expand(K, -1),
            "prompt_mask": torch.ones(K, len(prompt), dtype=torch.long),
            "completion_ids": pad_sequence(responses, batch_first=True),
            "completion_mask": pad_sequence([torch.ones_like(r) for r in responses], batch_first=True),
            "advantages": advantages,
            "num_items_in_batch": torch.tensor(float(sum(map(len, responses)))),
        }

    def __call__(self) -> None:
        loss = self._trainer.compute_loss(self.model, self._inputs)
        (loss * LONGEST).backward()


def _group(vocabulary: int) -> Group:
    rng = np.random.default_rng(0)
    [prompt] = prompts(1, PROMPT, vocabulary, rng)
    return group(prompt, np.linspace(SHORTEST, LONGEST, K).astype(np.int64), vocabulary, rng)


def _timed(step: Any) -> float:
    step.model.zero_grad()
    return seconds(step)


def _gradient_difference(ours: _Ours, other: _Trl) -> float:
    """Norm of the difference over the norm."""
    ours()
    other()
    theirs = dict(other.model.named_parameters())
    square = norm = 0.0
    for name, parameter in ours.model.named_parameters():
        mine, other_gradient = parameter.grad, theirs[name].grad
        assert mine is not None
        assert other_gradient is not None
        square += float((mine - other_gradient).square().sum())
        norm += float(mine.square().sum())
    return math.sqrt(square / norm)


def _peak(kind: str, num_layers: int) -> float:
    """Megabytes a fresh process gains at its peak over what the model and its gradients take."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(send, kind, num_layers))
    process.start()
    send.close()
    peak: float = receive.recv()
    process.join()
    return peak


def _report_peak(send: Any, kind: str, num_layers: int) -> None:
    torch.set_num_threads(1)
    data = _group(49_152)
    model = large(num_layers)
    step: Any = _Ours(model, data) if kind == "ours" else _Trl(model, data, torch.randn(K))
    for parameter in step.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resident("VmRSS")
    reset_peak()
    step()
    send.send(resident("VmHWM") - before)
