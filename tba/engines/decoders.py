"""Two ways to run a model forward token by token. The loop that samples is in `engines/transformers.py`.

`SharedPromptDecoder` keeps one copy of each prompt's keys and values for all its responses, and preallocates
those of the responses; nothing is copied to append a token. `CachedDecoder` uses transformers' own cache and works
for any causal LM. Slots form a rectangle of G prompts × S responses, row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tba.types import TbaError


class Decoder(Protocol):
    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int, max_new_tokens: int) -> Tensor:
        """Read G prompts; logits of the first new token, (G, V)."""
        ...

    def step(self, tokens_R: Tensor) -> Tensor:
        """Append one token to each slot; logits of the next, (R, V)."""
        ...

    def keep(self, slots_GS: Tensor) -> None:
        """Keep these slots only, in this order. All slots of a row belong to one prompt."""
        ...


class SharedPromptDecoder:
    """Owns the keys and values, and is the attention layout of its own forward passes (`tba.attention`)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._num_layers: int = model.config.num_hidden_layers

    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int, max_new_tokens: int) -> Tensor:
        ids_GP = pad_sequence([torch.tensor(p) for p in prompts], batch_first=True)
        self._lengths_G = torch.tensor([len(p) for p in prompts])
        G, P = ids_GP.shape
        padded_GP = torch.arange(P) >= self._lengths_G.unsqueeze(1)
        self._prompt_bias = torch.zeros(G, 1, 1, P).masked_fill_(padded_GP[:, None, None], float("-inf"))
        self._shape = (G, num_responses)
        self._capacity = max_new_tokens
        self._length = -1  # tokens appended so far; -1 while the prompts are read
        self._prompt_key: list[Tensor] = []
        self._prompt_value: list[Tensor] = []
        self._own_key: list[Tensor] = []
        self._own_value: list[Tensor] = []
        hidden_GPH = self._forward(ids_GP, torch.arange(P).expand(G, P))
        self._length = 0
        logits: Tensor = self._head(hidden_GPH[torch.arange(G), self._lengths_G - 1])
        return logits

    def step(self, tokens_R: Tensor) -> Tensor:
        positions_R = (self._lengths_G + self._length).repeat_interleave(self._shape[1])
        hidden_R1H = self._forward(tokens_R.unsqueeze(1), positions_R.unsqueeze(1))
        self._length += 1
        logits: Tensor = self._head(hidden_R1H[:, 0])
        return logits

    def keep(self, slots_GS: Tensor) -> None:
        prompts_G = slots_GS[:, 0] // self._shape[1]
        self._lengths_G = self._lengths_G[prompts_G]
        self._prompt_bias = self._prompt_bias[prompts_G]
        flat = slots_GS.flatten()
        for layer in range(self._num_layers):
            self._prompt_key[layer] = self._prompt_key[layer][prompts_G]
            self._prompt_value[layer] = self._prompt_value[layer][prompts_G]
            for own in (self._own_key, self._own_value):
                kept = own[layer].new_empty(len(flat), *own[layer].shape[1:])
                kept[:, :, : self._length] = own[layer][flat, :, : self._length]
                own[layer] = kept
        self._shape = (slots_GS.shape[0], slots_GS.shape[1])

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        output = self._decoder(input_ids=ids, position_ids=positions, use_cache=False, layout=self)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        if self._length < 0:
            if layer != len(self._prompt_key):
                raise TbaError("model.attention = 'shared' does not fit a model whose layers repeat: use 'padded'")
            return self._attend_prompts(query, key, value, scaling)
        return self._attend_responses(layer, query, key, value, scaling)

    def _attend_prompts(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Causal over right-padded prompts: padding lies behind every real position."""
        self._prompt_key.append(key)
        self._prompt_value.append(value)
        G, S = self._shape
        for own, new in ((self._own_key, key), (self._own_value, value)):  # a value may be shorter than its key
            own.append(new.new_empty(G * S, new.shape[1], self._capacity, new.shape[-1]))
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2)

    def _attend_responses(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One softmax over two sets of keys: the prompt's, read once per group, and the response's own."""
        G, S = self._shape
        own_key, own_value = self._own_key[layer], self._own_value[layer]
        t = self._length
        own_key[:, :, t] = key[:, :, 0]
        own_value[:, :, t] = value[:, :, 0]
        R, H, _, D = query.shape
        heads = key.shape[1]
        repeat = H // heads  # query heads that share one key head

        query_R = (query * scaling).view(R, heads, repeat, D)
        query_G = query_R.view(G, S, heads, repeat, D).transpose(1, 2).reshape(G, heads, S * repeat, D)
        prompt_scores = query_G @ self._prompt_key[layer].transpose(2, 3) + self._prompt_bias
        P = prompt_scores.shape[-1]
        prompt_scores = prompt_scores.view(G, heads, S, repeat, P).transpose(1, 2).reshape(R, heads, repeat, P)
        own_scores = query_R @ own_key[:, :, : t + 1].transpose(2, 3)

        weights = torch.cat([prompt_scores, own_scores], dim=-1).softmax(dim=-1)
        prompt_weights = weights[..., :P].view(G, S, heads, repeat, P).transpose(1, 2)
        from_prompt = prompt_weights.reshape(G, heads, S * repeat, P) @ self._prompt_value[layer]
        from_prompt = from_prompt.view(G, heads, S, repeat, -1).transpose(1, 2).reshape(R, heads, repeat, -1)
        out = torch.matmul(weights[..., P:], own_value[:, :, : t + 1]).add_(from_prompt)
        return out.view(R, 1, H, -1)


class CachedDecoder:
    """transformers' own cache: left-padded prompts, repeated for their responses after one prefill."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int, max_new_tokens: int) -> Tensor:
        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        positions = (mask.cumsum(1) - 1).clamp_(min=0)
        output = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
        self._cache: Any = output.past_key_values
        self._cache.batch_repeat_interleave(num_responses)
        self._mask = mask.repeat_interleave(num_responses, dim=0)
        logits: Tensor = output.logits[:, -1]
        return logits

    def step(self, tokens_R: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens_R), 1)], dim=1)
        output = self._model(
            input_ids=tokens_R.unsqueeze(1),
            attention_mask=self._mask,
            position_ids=self._mask.sum(1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def keep(self, slots_GS: Tensor) -> None:
        flat = slots_GS.flatten()
        self._cache.batch_select_indices(flat)
        self._mask = self._mask[flat]
