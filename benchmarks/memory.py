"""Memory of a training pass: what it keeps for the backward pass, against keeping all that derivatives read."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.machine import one_core
from benchmarks.models import LARGE, SMOLLM2, balance_of, group, large, prompts, small, smollm2_path
from benchmarks.report import Row, alternate, at_most, ratio_of, seconds
from tba.config.model import ModelConfig
from tba.policy import recompute
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import Policy, load_model
from tba.types import Group

PROMPT, K, LENGTH = 100, 16, 64
BETA = 0.1


def run(full: bool) -> Iterator[Row]:
    num_layers, repeats = (30, 5) if full else (4, 2)
    with one_core():
        yield from _of_a_large_model(num_layers, repeats)
        yield _time_of_a_small_model(repeats)


def _of_a_large_model(num_layers: int, repeats: int) -> Iterator[Row]:
    # First, while this process holds no models of its own.
    peak, peak_of_all = _peak(num_layers, everything=False), _peak(num_layers, everything=True)
    step = _Step(num_layers)
    tokens = K * LENGTH
    kept = kept_bytes(step.loss) / tokens / 1e6
    with everything_kept():
        all_kept = kept_bytes(step.loss) / tokens / 1e6
    shape = f"prompt {PROMPT}, K={K}, responses of {LENGTH}, {num_layers} layers of {step.name}"
    yield at_most(
        0.617,  # of 1.62 MB is 1 MB
        f"activations, {shape}",
        f"{kept:.2f} MB a trained token",
        f"all that derivatives read, {all_kept:.2f} MB",
        kept / all_kept,
        "counted",
        f"at the peak the process grows by {peak / tokens:.2f} MB a trained token, against {peak_of_all / tokens:.2f}",
    )
    yield _time(f"time of that pass, {num_layers} layers", step, repeats, limit=1.1)


def _time_of_a_small_model(repeats: int) -> Row:
    return _time("time of a pass of the embedded model", _Step(None), 20 * repeats, limit=1.05)


def _time(name: str, step: _Step, repeats: int, limit: float) -> Row:
    def in_full() -> float:
        with everything_kept():
            return seconds(step)

    ours, other = alternate(lambda: seconds(step), in_full, repeats)
    ratio, spread = ratio_of(ours, other)
    kept_text = f"all that derivatives read, {np.median(other):.3g} s"
    return at_most(limit, name, f"{np.median(ours):.3g} s", kept_text, ratio, spread)


class _Step:
    """A forward and a backward pass of one group."""

    def __init__(self, num_layers: int | None) -> None:
        """Of SmolLM2 if it is there, else of its shape; without a number of layers, of the embedded model."""
        if num_layers is None:
            self.model, self.name = small(), "the embedded model"
        elif SMOLLM2 in os.environ and num_layers == 30:
            self.model, self.name = load_model(smollm2_path()), "SmolLM2-135M"
        else:
            self.model, self.name = large(num_layers), LARGE
            self.model.set_attn_implementation(SHARED_PROMPT)
        self._policy = Policy(self.model, chunk_tokens=ModelConfig(path="").logit_chunk_tokens)
        self._group = _group(self.model.config.vocab_size)

    def loss(self) -> Tensor:
        return balance_of(self._policy, self._group, BETA).value

    def __call__(self) -> None:
        self.loss().backward()


def _group(vocabulary: int) -> Group:
    rng = np.random.default_rng(0)
    [prompt] = prompts(1, PROMPT, vocabulary, rng)
    return group(prompt, np.full(K, LENGTH), vocabulary, rng)


@contextmanager
def everything_kept() -> Iterator[None]:
    """Passes in this block compute nothing again."""
    before, recompute.WORTH_THE_CALLS = recompute.WORTH_THE_CALLS, 10**30
    try:
        yield
    finally:
        recompute.WORTH_THE_CALLS = before


def _peak(num_layers: int, *, everything: bool) -> float:
    """Megabytes (10⁶ bytes) that a fresh process gains at its peak over what it takes with the model, its gradients and
    the work space of the products."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(send, num_layers, everything))
    process.start()
    send.close()
    peak: float = receive.recv()
    process.join()
    return peak


def _report_peak(send: Any, num_layers: int, everything: bool) -> None:
    torch.set_num_threads(1)
    step = _Step(num_layers)
    with everything_kept() if everything else nullcontext():
        rng = np.random.default_rng(1)
        [prompt] = prompts(1, 8, step.model.config.vocab_size, rng)
        few = group(prompt, np.full(2, 4), step.model.config.vocab_size, rng)
        balance_of(Policy(step.model), few, BETA).value.backward()
        recompute.give_back_memory()
        before = resident("VmRSS")
        reset_peak()
        step()
    send.send((resident("VmHWM") - before) * 2**20 / 1e6)


def kept_bytes(forward: Callable[[], Tensor]) -> int:
    """What a forward pass makes that is still there at its end: its activations, as kept for the backward pass."""
    made = _Storages()
    with made:
        output = forward()
    count = sum(size for storage, size in made.sizes.values() if not storage.expired())
    assert output.requires_grad
    return count


class _Storages(TorchDispatchMode):
    """Notes the memory of every operation's output, without holding it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        given = {x.untyped_storage()._cdata for x in args if isinstance(x, Tensor)}
        for tensor in output if isinstance(output, tuple | list) else (output,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:
                storage = StorageWeakRef(tensor.untyped_storage())
                self.sizes[storage.cdata] = (storage, tensor.untyped_storage().nbytes())
        return output


def resident(field: str) -> float:
    """Megabytes of this process alone: `VmRSS` now, `VmHWM` at the peak. (getrusage would count what its parent held
    when it was started.)"""
    [line] = [x for x in Path("/proc/self/status").read_text("utf-8").splitlines() if x.startswith(f"{field}:")]
    return int(line.split()[1]) / 1024


def reset_peak() -> None:
    """The high-water mark starts anew, at what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
