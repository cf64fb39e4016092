"""What the processes of a run take of the memory, from the model's configuration and the settings. Loads no torch.

Counted are weights and their copies, gradients, AdamW's moments, activations of a pass, logits and the cache of keys
and values: what grows with the model and the settings. Reward models, data and the replay buffer are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tba.config.settings import Config

PROCESS_BYTES = 500_000_000
"""Of a process that has loaded torch and transformers, and nothing else."""
PROMPT_TOKENS = 256
"""Taken for the length of a prompt, which the settings do not say."""
GAPS = 1.25
"""The allocator holds so many times what activations take."""
KEPT_OUTSIDE = 3
"""Hidden states that a pass keeps outside the layers: the embeddings, and around the vocabulary projection."""
LOGIT_COPIES = 3
"""Logits, their probabilities and their derivatives."""
_WORTH_RECOMPUTING = 2 * 10**9
"""As `policy/recompute.py` has it: tokens times parameters of a layer from which on layers are computed again."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that memory depends on."""

    num_layers: int
    hidden: int
    intermediate: int
    """Of the feed-forward part; of a mixture, what one token goes through."""
    heads: int
    queries: int
    """Width of all queries together."""
    keys: int
    """Width of all keys together, and of all values."""
    vocabulary: int
    num_weights: int

    @property
    def num_layer_weights(self) -> int:
        attention = 2 * self.hidden * self.queries + 2 * self.hidden * self.keys
        return attention + 3 * self.hidden * self.intermediate


def shape_of(model_config: Mapping[str, Any], num_weights: int | None = None) -> Shape | None:
    """By a model's `config.json`; None if that does not say. Without `num_weights` they are counted from the sizes."""
    settings = {**model_config, **(model_config.get("text_config") or {})}

    def size(*names: str) -> int:
        return next((int(settings[name]) for name in names if isinstance(settings.get(name), int)), 0)

    layers, hidden = size("num_hidden_layers", "n_layer"), size("hidden_size", "n_embd")
    heads, vocabulary = size("num_attention_heads", "n_head"), size("vocab_size")
    if not (layers and hidden and heads and vocabulary):
        return None
    head = size("head_dim") or hidden // heads
    experts = size("moe_intermediate_size") * size("num_experts_per_tok")
    shape = Shape(
        num_layers=layers,
        hidden=hidden,
        intermediate=experts or size("intermediate_size", "n_inner") or 4 * hidden,
        heads=heads,
        queries=heads * head,
        keys=(size("num_key_value_heads") or heads) * head,
        vocabulary=vocabulary,
        num_weights=num_weights or 0,
    )
    if num_weights:
        return shape
    tables = 1 if settings.get("tie_word_embeddings") else 2
    counted = layers * shape.num_layer_weights + tables * vocabulary * hidden
    return Shape(**{**vars(shape), "num_weights": counted})


def activations_per_token(shape: Shape, *, checkpointing: bool, recompute: bool, bf16: bool) -> float:
    """Bytes that a forward pass keeps of a token for the backward pass."""
    products = shape.queries + 2 * shape.keys + shape.hidden + 2 * shape.intermediate
    attention = shape.queries + shape.heads
    if checkpointing:
        layer = float(shape.hidden)
    elif recompute:
        layer = shape.hidden + products / (2 if bf16 else 1) + attention
    else:
        layer = _whole_layer(shape)
    return 4 * (shape.num_layers * layer + KEPT_OUTSIDE * shape.hidden)


def _whole_layer(shape: Shape) -> float:
    """Numbers that all derivatives of a layer read, for one token. Fitted to counts of Llamas and Qwens."""
    return 5 * shape.hidden + 4.5 * shape.queries + 4 * shape.keys + 4 * shape.intermediate


@dataclass(frozen=True)
class Estimate:
    """Bytes that a run takes when it is at its largest."""

    fixed: float
    """Of the Trainer, whatever the size of a pass."""
    per_token: float
    """Of the Trainer, for each token of a pass."""
    searcher: float
    """Of each Searcher."""
    num_searchers: int
    published: float
    """In shared memory."""
    num_tokens: int
    """In the largest pass."""

    @property
    def trainer(self) -> float:
        return self.fixed + self.per_token * self.num_tokens

    @property
    def total(self) -> float:
        return self.trainer + self.num_searchers * self.searcher + self.published

    def tokens_within(self, num_bytes: float) -> int:
        """Tokens of a pass with which the run takes so much."""
        return int((num_bytes - self.total) / self.per_token) + self.num_tokens


def estimate(config: Config, shape: Shape, num_tokens: int) -> Estimate:
    """With at most so many tokens in a pass. No pass has more than a step, and all responses are as long as they may
    be."""
    trained = config.trainer.num_groups * _group_tokens(config, config.trainer.group_size)
    num_tokens = min(num_tokens, trained)
    weights, adapters = 4.0 * shape.num_weights, config.model.lora_rank > 0
    in_learner = config.reference.where == "learner" and not adapters
    logits = LOGIT_COPIES * 4.0 * config.model.logit_chunk_tokens * shape.vocabulary
    kept = activations_per_token(
        shape,
        checkpointing=config.model.gradient_checkpointing,
        recompute=num_tokens * shape.num_layer_weights >= _WORTH_RECOMPUTING,
        bf16=config.model.in_bfloat16,
    )
    return Estimate(
        # Weights, gradients and AdamW's two moments; adapters are small. Autocast keeps a copy of the weights.
        fixed=PROCESS_BYTES
        + weights * ((1 if adapters else 4) + (0.5 if config.model.in_bfloat16 else 0) + (1 if in_learner else 0))
        + logits,
        per_token=GAPS * (kept + 4 * _whole_layer(shape)),
        searcher=_searcher_bytes(config, shape, num_tokens) + logits,
        num_searchers=config.searcher.num_searchers,
        published=0.0 if adapters else 2 * weights,
        num_tokens=num_tokens,
    )


def _group_tokens(config: Config, num_responses: int) -> int:
    """Of one prompt with so many responses, which share it."""
    return num_responses * config.engine.max_new_tokens + PROMPT_TOKENS


def _searcher_bytes(config: Config, shape: Shape, num_tokens: int) -> float:
    """Weights with the copy that products read, the reference likewise, keys and values, a pass of the reference."""
    engine, reference = config.engine, config.reference
    kept = 4 if engine.dtype == "float32" else 2
    packed = {"float32": 4, "bfloat16": 2, "int8": 1}[engine.settled_precision] if kept == 4 else 0
    of_reference = 0
    if reference.where == "searcher" and not config.model.lora_rank:
        plain = 4 if reference.dtype == "float32" else 2
        of_reference = plain + (4 if plain == 4 and not config.model.in_bfloat16 else 0)
    generated = config.searcher.prompts_per_batch * _group_tokens(config, config.searcher.num_responses)
    cache = generated * shape.num_layers * 2 * shape.keys * kept
    a_pass = 4 * _whole_layer(shape) * min(num_tokens, generated) if reference.where == "searcher" else 0.0
    return PROCESS_BYTES + (kept + packed + of_reference) * shape.num_weights + cache + a_pass
