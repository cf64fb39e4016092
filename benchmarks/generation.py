"""Generation: 8 prompts × 16 responses on one core, against `model.generate` on the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.models import large, prompts, small
from benchmarks.report import Row, alternate, ratio_of, seconds
from tba.attention import SHARED_PROMPT
from tba.engines.transformers import TransformersEngine

NUM_PROMPTS, NUM_RESPONSES = 8, 16


class _NoText:
    """Stands in for a tokenizer: decoding to text is not what is measured, and generate does not do it."""

    eos_token_id = None

    def batch_decode(self, rows: list[list[int]], **options: Any) -> list[str]:
        return ["" for _ in rows]


def run(repeats: int = 3) -> list[Row]:
    torch.set_num_threads(1)
    return [
        _compare("embedded model, 40 tokens", small(), 20, 40, repeats),
        _compare("SmolLM2-135M's shape, 16 tokens", large(), 100, 16, 2),
    ]


def _compare(name: str, model: PreTrainedModel, prompt_length: int, num_tokens: int, repeats: int) -> Row:
    asked = prompts(NUM_PROMPTS, prompt_length, model.config.vocab_size, np.random.default_rng(0))
    rows = torch.tensor([p.tokens for p in asked]).repeat_interleave(NUM_RESPONSES, dim=0)
    model.generation_config.eos_token_id = None  # every response runs to its limit, in both
    model.generation_config.pad_token_id = 0
    engine = TransformersEngine(model, _NoText(), temperature=1.0, max_new_tokens=num_tokens, seed=0)  # type: ignore[arg-type]

    def ours() -> float:
        model.set_attn_implementation(SHARED_PROMPT)
        return seconds(lambda: engine.generate(asked, NUM_RESPONSES))

    def other() -> float:
        model.set_attn_implementation("sdpa")
        return seconds(
            lambda: model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                max_new_tokens=num_tokens,
                min_new_tokens=num_tokens,
            )
        )

    mine, theirs = alternate(ours, other, repeats)
    ratio, spread = ratio_of(theirs, mine)
    total = NUM_PROMPTS * NUM_RESPONSES * num_tokens
    return Row(
        f"generation, 8 × 16, {name}",
        f"{total / np.median(mine):,.0f} tok/s",
        f"model.generate, {total / np.median(theirs):,.0f} tok/s",
        ratio,
        spread,
        "at least 1.5",
        ratio >= 1.5,
    )


if __name__ == "__main__":
    for row in run():
        print(row)
