"""How fast this processor multiplies by matrices of a model's shapes, in each precision. Loads torch.

Only the model's configuration is read; its weights are neither loaded nor needed. What is timed is the very code that
Searchers and the Trainer run. Times are those of the processor, not of the clock, so that other work on the machine
hardly matters, and the best of several counts, because disturbances only ever add.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tba.engines import kernels
from tba.engines.packed_linear import PackedProduct, Precision, layers_by_input
from tba.policy.names import model_directory

MAX_WEIGHTS = 2**21
"""A matrix with more is cut to this many, and counts for all of them: the product of a vocabulary takes long."""
ROWS_IN_TRAINING = 512
"""Rows of the products of a training pass, which has more, while their speed hardly changes."""


@dataclass(frozen=True)
class Matrix:
    """The weight of some linear layers that share their input, cut to the size that is measured."""

    num_inputs: int
    num_outputs: int
    times: float
    """How many of this size the model has, in parts too."""

    @property
    def num_weights(self) -> float:
        return self.num_inputs * self.num_outputs * self.times


def matrices(path: str, *, trust_remote_code: bool = False) -> list[Matrix]:
    """The matrices that a causal LM multiplies by, each shape once."""
    config = AutoConfig.from_pretrained(model_directory(path), trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    shapes: Counter[tuple[int, int]] = Counter()
    for _, layers in layers_by_input(model):
        [num_inputs] = {layer.in_features for layer in layers.values()}
        shapes[num_inputs, sum(layer.out_features for layer in layers.values())] += 1
    found = []
    for (num_inputs, num_outputs), count in shapes.items():
        cut = min(num_outputs, max(1, MAX_WEIGHTS // num_inputs))
        found.append(Matrix(num_inputs, cut, count * num_outputs / cut))
    return found


def generation_seconds(measured: Sequence[Matrix], *, num_rows: int, repeats: int = 5) -> dict[str, float]:
    """By precision: what the products of a decoding step with so many rows take."""
    precisions: list[Precision] = ["float32", "bfloat16"]
    if kernels.has_int8():
        precisions.append("int8")
    total: dict[str, float] = dict.fromkeys(precisions, 0.0)
    with torch.inference_mode():
        for matrix in measured:
            layer = nn.Linear(matrix.num_inputs, matrix.num_outputs, bias=False)
            x = torch.randn(num_rows, matrix.num_inputs)
            packed = {precision: PackedProduct([layer], precision).layers[0] for precision in precisions}
            for name, best in _best({name: partial(product, x) for name, product in packed.items()}, repeats).items():
                total[name] += matrix.times * best
    return total


def training_seconds(
    measured: Sequence[Matrix], *, num_rows: int = ROWS_IN_TRAINING, repeats: int = 3
) -> dict[str, float]:
    """By precision: what the products of a forward and backward pass with so many rows take."""
    total = {"float32": 0.0, "bfloat16": 0.0}
    for matrix in measured:
        layer = nn.Linear(matrix.num_inputs, matrix.num_outputs, bias=False)
        x = torch.randn(num_rows, matrix.num_inputs, requires_grad=True)
        gradient = torch.randn(num_rows, matrix.num_outputs)
        works = {name: partial(_both_passes, layer, x, gradient, bf16=name == "bfloat16") for name in total}
        for name, best in _best(works, repeats).items():
            total[name] += matrix.times * best
    return total


def _both_passes(layer: nn.Linear, x: Tensor, gradient: Tensor, *, bf16: bool) -> None:
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        product = layer(x)
    product.float().backward(gradient)


def _best(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least seconds of the processor that each took, in turn, after a call that does not count."""
    best = dict.fromkeys(works, float("inf"))
    for repeat in range(repeats + 1):
        for name, work in works.items():
            start = time.thread_time()
            work()
            if repeat:
                best[name] = min(best[name], time.thread_time() - start)
    return best
