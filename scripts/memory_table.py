"""The table of docs/hardware.md: what a run takes of the memory, by the function that a run asks before it starts.

The sizes are those in the `config.json` of each model on the hub.
"""

from __future__ import annotations

from typing import Any

from tba.config.settings import Config, parse_config
from tba.launch.memory_estimate import Estimate, estimate, shape_of

_QWEN: dict[str, Any] = {"vocab_size": 151_936, "tie_word_embeddings": True}
MODELS: dict[str, dict[str, Any]] = {
    "SmolLM2-135M": {
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1_536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-0.5B": {
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "intermediate_size": 4_864,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        **_QWEN,
    },
    "Qwen2.5-1.5B": {
        "num_hidden_layers": 28,
        "hidden_size": 1_536,
        "intermediate_size": 8_960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        **_QWEN,
    },
    "Qwen2.5-7B": {
        "num_hidden_layers": 28,
        "hidden_size": 3_584,
        "intermediate_size": 18_944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152_064,
        "tie_word_embeddings": False,
    },
}
WHAT_IS_TRAINED: dict[str, dict[str, Any]] = {
    "all weights": {},
    "adapters, rank 16": {"model": {"lora_rank": 16}},
}
PASSES = (4_352, 1_024)
"""Tokens of a pass: one whole group at the default settings with its prompt, and the usual first remedy."""
HEAD = ("model", "trained", "Trainer", "each Searcher", "shared memory", "together", f"with passes of {PASSES[1]:,}")


def memory_table() -> str:
    rows = [HEAD, ("---", "---", *["---:"] * (len(HEAD) - 2))]
    for model, sizes in MODELS.items():
        for trained, settings in WHAT_IS_TRAINED.items():
            whole, small = (estimated(sizes, settings, num_tokens) for num_tokens in PASSES)
            parts = (whole.trainer, whole.searcher, whole.published, whole.total, small.total)
            rows.append((model, trained, *(f"{part / 1e9:.1f}" for part in parts)))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return (
        "\n".join(lines)
        + f"\n\nIn gigabytes. A pass has {PASSES[0]:,} tokens, one whole group, except in the last column.\n"
    )


def estimated(sizes: dict[str, Any], settings: dict[str, Any], num_tokens: int) -> Estimate:
    shape = shape_of(sizes)
    assert shape is not None
    return estimate(config_of(settings), shape, num_tokens)


def config_of(settings: dict[str, Any]) -> Config:
    """The defaults, in float32, whatever `auto` would find on this machine."""
    plain = {"model": {"path": "MODEL", "precision": "float32"}, "engine": {"precision": "float32"}}
    return parse_config({**plain, "task": {"kind": "addition"}}, settings)
