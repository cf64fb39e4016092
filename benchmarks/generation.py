"""Generation on one core: against `model.generate`, int8 against float32, and refilled rows against whole batches.

The first two are 8 prompts × 16 responses × 64 tokens. The last has responses of 10 to 200 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.machine import one_core, peak_gflops
from benchmarks.models import LARGE, QUESTIONS, flops_a_token, large, prompts, small, smollm2_path
from benchmarks.report import Row, alternate, at_least, ratio_of, seconds
from tba.engines.base import Request, generate
from tba.engines.branches import Ints
from tba.engines.numbers import Keys, Numbers, uniform
from tba.engines.packed_linear import Precision
from tba.engines.stops import stop_tokens
from tba.engines.transformers import TransformersEngine
from tba.policy.attention import SHARED_PROMPT
from tba.policy.policy import load_model, load_tokenizer
from tba.tasks.encoding import encoder
from tba.types import Prompt

NUM_PROMPTS, NUM_RESPONSES, NUM_TOKENS = 8, 16, 64
LARGE_PROMPT = 100
SHORTEST, LONGEST, NUM_STEPS = 10, 200, 400


class _NoText:
    """Stands in for a tokenizer: decoding to text is not what is measured, and generate does not do it."""

    eos_token_id = None

    def batch_decode(self, rows: list[list[int]], **options: Any) -> list[str]:
        return ["" for _ in rows]


def run(full: bool) -> Iterator[Row]:
    """The quick form leaves out the real model, which has to be fetched."""
    tokens = NUM_TOKENS if full else 16
    parts = [partial(_embedded, 25 if full else 5), partial(_against_generate, tokens, 1), partial(_int8, tokens, 2)]
    parts += [partial(_refilled, num_prompts, 5 if full else 1) for num_prompts in (1, NUM_PROMPTS)]
    if full:
        parts.append(partial(_pretrained, smollm2_path(), 2))
    for part in parts:
        with one_core():  # not around the yield: the caller has all cores
            row = part()
        yield row


def _embedded(repeats: int) -> Row:
    """The task's own prompts, real ends: what a run does."""
    from tba.config.settings import Config

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


def _refilled(num_prompts: int, repeats: int) -> Row:
    """Rows that are refilled at once, against a batch at a time."""
    streaming = _Stream(num_prompts * NUM_RESPONSES)
    mine, other = alternate(streaming.refilled, streaming.in_batches, repeats, warm_up=False)
    ratio, spread = ratio_of(mine, other)
    return at_least(
        1.2 if num_prompts == 1 else 1.0,
        f"refilled rows, embedded model, {streaming.num_rows} rows, responses of {SHORTEST} to {LONGEST} tokens",
        f"{np.median(mine):,.0f} tok/s",
        f"a batch at a time, {np.median(other):,.0f} tok/s",
        ratio,
        spread,
        f"rows busy in {streaming.busy:.1%} of the steps, {streaming.busy_in_batches:.1%} with batches",
    )


class _Stream:
    """Requests for responses whose lengths follow from their keys, so that both ways generate the same."""

    def __init__(self, num_rows: int) -> None:
        model = small()
        self.num_rows = num_rows
        model.generation_config.eos_token_id = model.config.vocab_size - 1
        self._engine = engine(model, LONGEST, with_ends=True, numbers=_ending_numbers)
        self._asked = prompts(NUM_PROMPTS, 32, model.config.vocab_size, np.random.default_rng(0))
        self.busy = self.busy_in_batches = 0.0

    def refilled(self) -> float:
        rate, self.busy = self._run(ahead=self.num_rows)
        return rate

    def in_batches(self) -> float:
        rate, self.busy_in_batches = self._run(ahead=0)
        return rate

    def _run(self, ahead: int) -> tuple[float, float]:
        """Tokens a second, and the share of rows that were busy. With nothing ahead, a batch follows another."""
        engine, num, drawn = self._engine, 0, 0

        def steps() -> None:
            nonlocal num, drawn
            for _ in range(NUM_STEPS):
                waiting = engine.num_waiting
                if waiting < ahead or not (ahead or engine.num_running or waiting):
                    for _ in range(self.num_rows // NUM_RESPONSES):
                        engine.submit(Request(num, self._asked[num % NUM_PROMPTS], NUM_RESPONSES, seed=num))
                        num += 1
                unfinished = engine.num_waiting + engine.num_running
                engine.collect(self.num_rows)
                drawn += unfinished - engine.num_waiting  # whatever ran or began in this step got a token

        spent = seconds(steps)
        engine.abort(range(num))
        return drawn / spent, drawn / (NUM_STEPS * self.num_rows)


def _ending_numbers(key_A: Keys, token_A: Ints) -> Numbers:
    """Numbers that draw the last token of the vocabulary where a response is to end, and not before."""
    length_A = SHORTEST + (key_A % np.uint64(LONGEST - SHORTEST + 1)).astype(np.int64)
    ends_A = token_A + 1 >= length_A
    return np.where(ends_A, np.float32(1 - 2.0**-24), uniform(key_A, token_A) * np.float32(0.5))


def large_prompts(model: PreTrainedModel) -> list[Prompt]:
    return prompts(NUM_PROMPTS, LARGE_PROMPT, model.config.vocab_size, np.random.default_rng(0))


def engine(
    model: PreTrainedModel,
    num_tokens: int,
    precision: Precision = "float32",
    *,
    with_ends: bool = False,
    numbers: Callable[[Keys, Ints], Numbers] = uniform,
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
        numbers=numbers,
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
