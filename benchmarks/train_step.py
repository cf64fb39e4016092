"""The Trainer's forward and backward pass: prompt shared by its group, against the plain padded forward."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.models import group, large, prompts
from benchmarks.report import Row, alternate, ratio_of, seconds
from tba.attention import SHARED_PROMPT
from tba.batch import collate
from tba.objectives import trajectory_balance
from tba.policy import token_logprobs

PROMPT, K, SHORTEST, LONGEST = 120, 8, 60, 180


def run(repeats: int = 3, num_layers: int = 6) -> list[Row]:
    torch.set_num_threads(1)
    model = large(num_layers)
    ours, other = alternate(lambda: _timed(model, SHARED_PROMPT), lambda: _timed(model, "sdpa"), repeats)
    ratio, spread = ratio_of(other, ours)
    peak_ours, peak_other = _peak(SHARED_PROMPT, num_layers), _peak("sdpa", num_layers)
    shape = f"prompt {PROMPT}, K={K}, responses {SHORTEST}-{LONGEST}"
    return [
        Row(
            f"training pass, {shape}",
            f"{np.median(ours):.2f} s",
            f"padded forward, {np.median(other):.2f} s",
            ratio,
            spread,
            "at least 1.8",
            ratio >= 1.8,
        ),
        Row(
            "peak memory of that pass",
            f"{peak_ours:.0f} MB",
            f"padded forward, {peak_other:.0f} MB",
            peak_ours / peak_other,
            "one process each",
            "below 1",
            peak_ours < peak_other,
        ),
    ]


def _step(model: PreTrainedModel, attention: str) -> None:
    rng = np.random.default_rng(0)
    [prompt] = prompts(1, PROMPT, model.config.vocab_size, rng)
    lengths = np.linspace(SHORTEST, LONGEST, K).astype(int)
    batch = collate([group(prompt, lengths, model.config.vocab_size, rng)])
    model.set_attn_implementation(attention)
    policy_GK = batch.sum_by_trajectory(token_logprobs(model, batch.packed))
    trajectory_balance(policy_GK, batch.reference_GK, batch.reward_GK, beta=0.1).value.backward()
    model.zero_grad()


def _timed(model: PreTrainedModel, attention: str) -> float:
    return seconds(lambda: _step(model, attention))


def _peak(attention: str, num_layers: int) -> float:
    """Megabytes a fresh process gains at its peak over what the model itself takes."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(send, attention, num_layers))
    process.start()
    peak: float = receive.recv()
    process.join()
    return peak


def _report_peak(send: Any, attention: str, num_layers: int) -> None:
    torch.set_num_threads(1)
    model = large(num_layers)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew, at what is resident now
    _step(model, attention)
    send.send(_memory("VmHWM") - before)


def _memory(field: str) -> float:
    """Megabytes, of this process alone. (getrusage would count what its parent held when it was started.)"""
    [line] = [x for x in Path("/proc/self/status").read_text("utf-8").splitlines() if x.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    for row in run():
        print(row)
