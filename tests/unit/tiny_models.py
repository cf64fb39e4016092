"""Random models of the architectures we claim to run, small enough for a test, and groups of chosen lengths."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DiffLlamaConfig,
    DogeConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    NemotronConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from tba.policy.attention import SHARED_PROMPT
from tba.policy.batch import PackedTokens
from tba.policy.policy import Policy
from tba.testing import make_response
from tba.types import Prompt, Response

VOCABULARY, EOS = 24, 1

FLOAT32 = 64 * 15 * 8 * 2**-24
"""More than float32 can add to an output of these models, or of those in `tba.testing`, on any processor.

A sum of n terms is off by at most n · 2⁻²⁴ of their sizes, in whatever order it is made, and 15 sums of at most 64
terms, whose sizes add up to some 8, follow one another. That makes 5e-4. Real errors, being random, are near 1e-6; a
mistake moves 1e-2 or more.
"""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}


def _config(kind: type[PreTrainedConfig], **changes: Any) -> PreTrainedConfig:
    return kind(**{**_COMMON, **changes})


ARCHITECTURES: dict[str, PreTrainedConfig] = {
    "llama": _config(LlamaConfig),
    "llama, all heads their own": _config(LlamaConfig, num_key_value_heads=4),
    "llama, one key head": _config(LlamaConfig, num_key_value_heads=1),
    "llama, tied": _config(LlamaConfig, tie_word_embeddings=True),
    "qwen2 (biases)": _config(Qwen2Config, tie_word_embeddings=True),
    "qwen3 (norms on queries and keys)": _config(Qwen3Config, head_dim=16),
    "gpt2 (learned positions, dropout)": _config(GPT2Config, attn_pdrop=0.5, resid_pdrop=0.5),
    "gpt-neox (partly rotary, parallel)": _config(GPTNeoXConfig, rotary_pct=0.25, use_parallel_residual=True),
    "phi (head with a bias)": _config(PhiConfig, partial_rotary_factor=0.5),
    "deepseek-v3 (keys longer than values)": _config(
        DeepseekV3Config,
        num_key_value_heads=4,
        moe_intermediate_size=16,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
    ),
}
"""Those whose attention can be replaced."""

WINDOWED: dict[str, PreTrainedConfig] = {
    "mistral": _config(MistralConfig, sliding_window=4),
    "gemma2": _config(Gemma2Config, sliding_window=4, head_dim=8),
    "gemma3": _config(Gemma3TextConfig, sliding_window=4, head_dim=8),
}
"""Those whose attention is not a plain softmax over all earlier tokens, and whose configuration says so."""

PECULIAR: dict[str, PreTrainedConfig] = {
    "doge (a mask made of values)": _config(DogeConfig),
    "nemotron (hands no keywords on)": _config(NemotronConfig),
}
"""Those whose configuration does not say so."""

REPEATING = _config(DiffLlamaConfig)
"""Each of its layers attends twice."""


def build(config: PreTrainedConfig, *, shared: bool, seed: int = 0) -> PreTrainedModel:
    """A model with weights far enough from zero that every position matters to every other."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(deepcopy(config))
        for parameter in model.parameters():
            # Biases and the scales of norms are vectors, and keep their usual size.
            torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.25)
    model.set_attn_implementation(SHARED_PROMPT if shared else "sdpa")
    return model.eval()


Lengths = Sequence[tuple[int, Sequence[int]]]
"""For each group, the length of its prompt and of its responses."""


def answered(lengths: Lengths, seed: int = 0) -> list[tuple[Prompt, list[Response]]]:
    """Prompts and responses of these lengths, of random tokens."""
    rng = np.random.default_rng(seed)

    def tokens(length: int) -> list[int]:
        return rng.integers(2, VOCABULARY, length).tolist()

    return [
        (Prompt(str(i), "", tuple(tokens(length))), [make_response(tokens(n)) for n in responses])
        for i, (length, responses) in enumerate(lengths)
    ]


def token_logprobs(model: PreTrainedModel, packed: PackedTokens, **settings: Any) -> Tensor:
    """Log-probability of every response token."""
    tokens_T: Tensor = Policy(model, **settings)(packed).tokens_T
    return tokens_T
