"""Precisions against float32 on this processor: products of SmolLM2's shapes, generation and a training pass.

What is promised depends on the instructions of the processor, so targets hold only where it has AMX. One core and one
thread, by seconds of the processor: other work on the machine then hardly matters.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from transformers import PreTrainedModel

from benchmarks.generation import NUM_RESPONSES, NUM_TOKENS, engine, large_prompts
from benchmarks.machine import one_core
from benchmarks.models import LARGE, SMOLLM2, balance_of, group, large, prompts
from benchmarks.report import Row, alternate, at_least, ratio_of
from tba.engines import kernels
from tba.engines.base import generate
from tba.engines.packed_linear import Precision
from tba.engines.transformers import TransformersEngine
from tba.launch.precision import processor
from tba.launch.product_speeds import Matrix, generation_seconds, training_seconds
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import Policy, load_model
from tba.types import Prompt

AMX = "amx_bf16"
GENERATION_TARGET, TRAINING_TARGET = 1.8, 1.6
"""How many times as fast as float32 bfloat16 is to be on a processor with AMX."""
PROMPT, K, LENGTH = 100, 16, 64
SHAPES = {
    "queries, keys and values": (576, 960),
    "gate and up": (576, 3072),
    "down": (1536, 576),
    "head": (576, 49_152),
}
"""Inputs and outputs of SmolLM2-135M's products."""


def run(full: bool) -> Iterator[Row]:
    """The quick form takes four of the layers; the full form the real model, if `TBA_SMOLLM2` names its folder."""
    path = os.environ.get(SMOLLM2) if full else None
    model, name = (load_model(path), "SmolLM2-135M") if path else (large(30 if full else 4), LARGE)
    make = (lambda: load_model(path)) if path else (lambda: large(30 if full else 4))
    repeats, tokens = (5, NUM_TOKENS) if full else (3, 16)
    coarse: list[Precision] = ["bfloat16", "int8"] if kernels.has_int8() else ["bfloat16"]
    parts: list[Callable[[], Row]] = [
        *(partial(_product, shape, num_rows) for num_rows in (16, 128) for shape in SHAPES),
        *(partial(_product_in_training, shape, 512) for shape in SHAPES if shape != "head"),
        *(partial(_generation, make, name, precision, tokens, repeats) for precision in coarse),
        partial(_training, model, name, repeats),
    ]
    for part in parts:
        with one_core():  # not around the yield: the caller has all cores
            row = part()
        yield row


def _product(shape: str, num_rows: int) -> Row:
    seconds = generation_seconds([Matrix(*SHAPES[shape], 1.0)], num_rows=num_rows)
    return _product_row(f"product of {num_rows} rows, {shape}", seconds, 2 * num_rows * math.prod(SHAPES[shape]))


def _product_in_training(shape: str, num_rows: int) -> Row:
    seconds = training_seconds([Matrix(*SHAPES[shape], 1.0)], num_rows=num_rows)
    name = f"product of {num_rows} rows, {shape}, forward and backward"
    return _product_row(name, seconds, 6 * num_rows * math.prod(SHAPES[shape]))


def _product_row(name: str, seconds: dict[str, float], flops: int) -> Row:
    speeds = {precision: f"{flops / spent / 1e9:.0f} GFLOP/s" for precision, spent in seconds.items()}
    return Row(
        f"{name}, in bfloat16",
        speeds["bfloat16"],
        f"float32, {speeds['float32']}",
        seconds["float32"] / seconds["bfloat16"],
        "best of several",
        "",
        measured=f"int8: {speeds['int8']}" if "int8" in speeds else "",
    )


def _generation(
    make: Callable[[], PreTrainedModel], name: str, precision: Precision, num_tokens: int, repeats: int
) -> Row:
    plain, coarse = engine(make(), num_tokens), engine(make(), num_tokens, precision)
    asked = large_prompts(make())
    mine, other = alternate(lambda: _rate(coarse, asked), lambda: _rate(plain, asked), repeats)
    return _row(
        f"generation in {precision}, {len(asked)} × {NUM_RESPONSES} × {num_tokens} tokens, {name}",
        GENERATION_TARGET if precision == "bfloat16" else None,
        (float(np.median(mine)), float(np.median(other))),
        ratio_of(mine, other),
    )


def _training(model: PreTrainedModel, name: str, repeats: int) -> Row:
    """Forward and backward pass of one group."""
    model.set_attn_implementation(SHARED_PROMPT)
    rng, vocabulary = np.random.default_rng(0), model.config.vocab_size
    [prompt] = prompts(1, PROMPT, vocabulary, rng)
    data = group(prompt, np.full(K, LENGTH), vocabulary, rng)

    def rate(policy: Policy) -> float:
        model.zero_grad()
        start = time.thread_time()
        balance_of(policy, data, 0.1).value.backward()
        return K * LENGTH / (time.thread_time() - start)

    rough, plain = Policy(model, bf16=True), Policy(model)
    mine, other = alternate(lambda: rate(rough), lambda: rate(plain), repeats)
    return _row(
        f"training pass in bfloat16, prompt {PROMPT}, {K} × {LENGTH} tokens, {name}",
        TRAINING_TARGET,
        (float(np.median(mine)), float(np.median(other))),
        ratio_of(mine, other),
    )


def _row(name: str, target: float | None, rates: tuple[float, float], ratio: tuple[float, str]) -> Row:
    ours, other = f"{rates[0]:,.0f} tok/s", f"float32, {rates[1]:,.0f} tok/s"
    if target is not None and AMX in processor().split():
        return at_least(target, name, ours, other, *ratio)
    return Row(name, ours, other, *ratio, target="")


def _rate(engine: TransformersEngine, asked: list[Prompt]) -> float:
    start = time.thread_time()
    num_tokens = sum(len(response) for found in generate(engine, asked, NUM_RESPONSES) for response in found)
    return num_tokens / (time.thread_time() - start)
