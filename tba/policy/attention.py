"""One attention function for transformers models that lets responses share the keys and values of their prompt.

transformers looks attention up by name, and hands it whatever keywords the forward call was given. We register
one name, and pass a *layout*: an object that knows which rows attend to which. Training (`PackedGroups`) and
generation (`engines/decoders.py`) are two layouts of the same function, so no model code is touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedConfig, PreTrainedModel

from tba.policy.precision import at_least_float32
from tba.types import TbaError

SHARED_PROMPT = "tba_shared_prompt"

# Configuration fields of models whose attention or logits are not a plain softmax over all earlier tokens.
_UNSUPPORTED = ("sliding_window", "attention_chunk_size", "attn_logit_softcapping", "alibi", "layer_types")
_UNSUPPORTED_HEADS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
_UNSUPPORTED_KEYWORDS = ("sliding_window", "softcap", "s_aux")


class AttentionLayout(Protocol):
    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """(1, H, N, D) queries and (1, Hkv, N, D) keys and values to (1, N, H, D) outputs."""
        ...


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    layout: AttentionLayout | None = kwargs.get("layout")
    own = attention_mask is not None or any(kwargs.get(name) is not None for name in _UNSUPPORTED_KEYWORDS)
    if layout is None or own:
        # A model that hands no keywords on, or masks in a way of its own, would compute something else with ours.
        raise TbaError(f"model.attention = 'shared' does not fit {type(module).__name__}: use 'padded'")
    scaling = kwargs.get("scaling")
    return layout.attend(module.layer_idx, query, key, value, scaling or query.shape[-1] ** -0.5), None


AttentionInterface.register(SHARED_PROMPT, _attend)


def supports_shared_prompt(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> bool:
    """Whether a model's attention can be replaced by ours without changing what it computes."""
    if not getattr(model_class, "_supports_attention_backend", False):
        return False
    if any(getattr(config, name, None) not in (None, 1.0) for name in _UNSUPPORTED_HEADS):
        return False
    if set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        return False
    # Qwen2 carries a window it does not use.
    windowed = getattr(config, "use_sliding_window", True)
    others = [name for name in _UNSUPPORTED if name != "layer_types" and (name != "sliding_window" or windowed)]
    return not any(getattr(config, name, None) for name in others)


@dataclass(frozen=True)
class ResponseBlock:
    """Responses of similar length, as rows of a rectangle."""

    index_RL: Tensor
    """Positions in the row. A response's last token predicts nothing, so it is not there."""
    group_R: Tensor
    """Which prompt each response belongs to."""
    mask_RLS: Tensor
    """Which of the S = P + L keys (prompt, then own tokens) each response position sees."""


@dataclass(frozen=True)
class PackedGroups:
    """Groups laid end to end in one row: each prompt once, then its responses.

    Index tensors point into the row; padding in them points at position 0, which is harmless: padded keys are
    masked or lie behind every real query, and padded queries are never read back.
    """

    prompt_index_GP: Tensor
    blocks: Sequence[ResponseBlock]
    row_index_N: Tensor
    """For each position of the row, where its output lies in [prompts, blocks] flattened."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if query.device.type != "cpu":
            return self._attend(query, key, value, scaling)
        # Under autocast too: on a CPU the backward pass of attention takes twice as long in bfloat16 as in float32.
        with torch.autocast("cpu", enabled=False):
            out = self._attend(at_least_float32(query), at_least_float32(key), at_least_float32(value), scaling)
        return out.to(query.dtype)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        gqa = query.shape[1] != key.shape[1]

        def rows(x: Tensor, index: Tensor) -> Tensor:  # (1, H, N, D) -> (rows, H, length, D)
            picked = x[0].index_select(1, index.flatten())
            return picked.view(picked.shape[0], *index.shape, -1).transpose(0, 1)

        prompt_key, prompt_value = rows(key, self.prompt_index_GP), rows(value, self.prompt_index_GP)
        prompt_out = scaled_dot_product_attention(
            rows(query, self.prompt_index_GP), prompt_key, prompt_value, is_causal=True, scale=scaling, enable_gqa=gqa
        )
        outputs = [prompt_out.transpose(1, 2).flatten(0, 1).flatten(1)]
        for block in self.blocks:

            def keys_of(prompt: Tensor, own: Tensor, block: ResponseBlock = block) -> Tensor:
                """The prompt's are shared by its group."""
                return torch.cat([prompt.index_select(0, block.group_R), rows(own, block.index_RL)], dim=2)

            response_out = scaled_dot_product_attention(
                rows(query, block.index_RL),
                keys_of(prompt_key, key),
                keys_of(prompt_value, value),
                attn_mask=block.mask_RLS.unsqueeze(1),
                scale=scaling,
                enable_gqa=gqa,
            )
            outputs.append(response_out.transpose(1, 2).flatten(0, 1).flatten(1))
        out = torch.cat(outputs).index_select(0, self.row_index_N)
        return out.view(1, len(out), query.shape[1], -1)
