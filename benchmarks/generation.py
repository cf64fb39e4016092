"""Generation: 8 prompts × 16 responses × 64 tokens on one core, against `model.generate`, and int8 against float32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.machine import one_core, peak_gflops
from benchmarks.models import LARGE, QUESTIONS, flops_a_token, large, prompts, small, smollm2_path
from benchmarks.report import Row, alternate, at_least, ratio_of, seconds
from tba.attention import SHARED_PROMPT
from tba.encoding import encoder
from tba.engines.base import generate
from tba.engines.packed_linear import Precision
from tba.engines.transformers import TransformersEngine, stop_tokens
from tba.policy import load_model, load_tokenizer
from tba.types import Prompt

NUM_PROMPTS, NUM_RESPONSES, NUM_TOKENS = 8, 16, 64
LARGE_PROMPT = 100


class _NoText:
    """Stands in for a tokenizer: decoding to text is not what is measured, and generate does not do it."""

    eos_token_id = None

    def batch_decode(self, rows: list[list[int]], **options: Any) -> list[str]:
        return ["" for _ in rows]


def run(full: bool) -> Iterator[Row]:
    """The quick form leaves out the real model, which has to be fetched."""
    tokens = NUM_TOKENS if full else 16
    parts = [partial(_embedded, 25 if full else 5), partial(_against_generate, tokens, 1), partial(_int8, tokens, 2)]
    if full:
        parts.append(partial(_pretrained, smollm2_path(), 2))
    for part in parts:
        with one_core():  # not around the yield: the caller has all cores
            row = part()
        yield row


def _embedded(repeats: int) -> Row:
    """The task's own prompts, real ends: what a run does."""
    from tba.config import Config

    tokenizer = load_tokenizer("arithmetic")
    task = Config.embedded().task.load(lambda text: (str(text), tuple(tokenizer(text).input_ids)))
    asked = [problem.prompt for problem in task.train[:NUM_PROMPTS]]
    ours, theirs = engine(small(), NUM_TOKENS, with_ends=True), _Generate(small(), asked, NUM_TOKENS, with_ends=True)
    mine, other = alternate(lambda: rate(ours, asked), theirs.rate, repeats)
    return _row("embedded model, the task's prompts and ends", mine, other, small())


def _pretrained(path: str, repeats: int) -> Row:
    """Real weights, questions and ends."""
    encode = encoder(load_tokenizer(path))
    asked = [Prompt(text, *encode([{"role": "user", "content": text}])) for text in QUESTIONS]
    model = load_model(path)
    ours = engine(model, NUM_TOKENS, with_ends=True)
    theirs = _Generate(load_model(path), asked, NUM_TOKENS, with_ends=True)
    mine, other = alternate(lambda: rate(ours, asked), theirs.rate, repeats, warm_up=False)
    name = f"SmolLM2-135M-Instruct, questions and ends, at most {NUM_TOKENS} tokens"
    return _row(name, mine, other, model)


def _against_generate(num_tokens: int, repeats: int) -> Row:
    model = large()
    asked = large_prompts(model)
    ours, theirs = engine(model, num_tokens), _Generate(large(), asked, num_tokens)
    mine, other = alternate(lambda: rate(ours, asked), theirs.rate, repeats, warm_up=False)
    return _row(f"{LARGE}, {num_tokens} tokens, nothing in common", mine, other, model)


def _row(name: str, mine: list[float], other: list[float], model: PreTrainedModel) -> Row:
    ratio, spread = ratio_of(mine, other)
    return at_least(
        3.0,
        f"generation, {NUM_PROMPTS} × {NUM_RESPONSES}, {name}",
        f"{np.median(mine):,.0f} tok/s",
        f"model.generate, {np.median(other):,.0f} tok/s",
        ratio,
        spread,
        share(float(np.median(mine)), model),
    )


def share(rate: float, model: PreTrainedModel) -> str:
    achieved = rate * flops_a_token(model) / 1e9
    return f"{achieved:.0f} GFLOP/s in weights' products, {achieved / peak_gflops():.0%} of the core's peak"


def _int8(num_tokens: int, repeats: int) -> Row:
    model = large()
    asked = large_prompts(model)
    coarse, plain = engine(large(), num_tokens, "int8"), engine(model, num_tokens)
    mine, other = alternate(lambda: rate(coarse, asked), lambda: rate(plain, asked), repeats, warm_up=False)
    ratio, spread = ratio_of(mine, other)
    return at_least(
        1.5,
        f"int8 search, {LARGE}, {num_tokens} tokens",
        f"{np.median(mine):,.0f} tok/s",
        f"float32, {np.median(other):,.0f} tok/s",
        ratio,
        spread,
    )


def large_prompts(model: PreTrainedModel) -> list[Prompt]:
    return prompts(NUM_PROMPTS, LARGE_PROMPT, model.config.vocab_size, np.random.default_rng(0))


def engine(
    model: PreTrainedModel, num_tokens: int, precision: Precision = "float32", *, with_ends: bool = False
) -> TransformersEngine:
    if not with_ends:
        model.generation_config.eos_token_id = None  # every response runs to its limit
    model.set_attn_implementation(SHARED_PROMPT)
    return TransformersEngine(
        model,
        _NoText(),  # type: ignore[arg-type]
        temperature=1.0,
        max_new_tokens=num_tokens,
        seed=0,
        precision=precision,
    )


def rate(engine: TransformersEngine, asked: list[Prompt]) -> float:
    found: list[int] = []
    spent = seconds(lambda: found.extend(len(r) for group in generate(engine, asked, NUM_RESPONSES) for r in group))
    return sum(found) / spent


class _Generate:
    """`model.generate` on the same rows, left-padded, sampling from the whole vocabulary."""

    def __init__(
        self, model: PreTrainedModel, asked: list[Prompt], num_tokens: int, *, with_ends: bool = False
    ) -> None:
        model.set_attn_implementation("sdpa")
        self._model = model
        longest = max(len(p.tokens) for p in asked)
        pads = [longest - len(p.tokens) for p in asked]
        self._ids = torch.tensor([[0] * pad + list(p.tokens) for pad, p in zip(pads, asked, strict=True)])
        self._mask = torch.tensor([[0] * pad + [1] * len(p.tokens) for pad, p in zip(pads, asked, strict=True)])
        self._ids, self._mask = (t.repeat_interleave(NUM_RESPONSES, dim=0) for t in (self._ids, self._mask))
        self._stop = sorted(stop_tokens(model, _NoText())) if with_ends else []  # type: ignore[arg-type]
        self._settings: dict[str, Any] = {"max_new_tokens": num_tokens, "pad_token_id": 0}
        self._settings |= {"eos_token_id": self._stop} if self._stop else {"min_new_tokens": num_tokens}
        if not self._stop:
            model.generation_config.eos_token_id = None

    def rate(self) -> float:
        found: list[torch.Tensor] = []
        spent = seconds(
            lambda: found.append(
                self._model.generate(  # type: ignore[operator]
                    self._ids, attention_mask=self._mask, do_sample=True, top_k=0, top_p=1.0, **self._settings
                )
            )
        )
        new = found[0][:, self._ids.shape[1] :]
        if not self._stop:
            return new.numel() / spent
        ended = torch.isin(new, torch.tensor(self._stop)).int()
        before_or_at_end = ended.cumsum(1) - ended == 0
        return int(before_or_at_end.sum()) / spent
