"""Two ways to run a model forward token by token. The loop that samples is in `engines/transformers.py`.

`SharedPromptDecoder` keeps one copy of each prompt's keys and values for all its responses, and preallocates
those of the responses; nothing is copied to append a token. `CachedDecoder` uses transformers' own cache and works
for any causal LM. Slots form a rectangle of W rows × G prompts (`engines/branches.py`).
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
        """Read G prompts, with one slot each and later `num_responses` at most; logits of the first token, (G, V)."""
        ...

    def step(self, tokens_R: Tensor) -> Tensor:
        """Append one token to each slot; logits of the next, (R, V)."""
        ...

    def rearrange(self, sources_WG: Tensor) -> None:
        """Each slot continues from the old slot given for it. All of a column belong to one prompt."""
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
        self._width = 1
        self._capacity = (G * num_responses, max_new_tokens)
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
        positions_R = (self._lengths_G + self._length).repeat(self._width)
        hidden_R1H = self._forward(tokens_R.unsqueeze(1), positions_R.unsqueeze(1))
        self._length += 1
        logits: Tensor = self._head(hidden_R1H[:, 0])
        return logits

    def rearrange(self, sources_WG: Tensor) -> None:
        G = len(self._lengths_G)
        width, num_prompts = sources_WG.shape
        if num_prompts != G:
            prompts_G = sources_WG[0] % G
            self._lengths_G = self._lengths_G[prompts_G]
            self._prompt_bias = self._prompt_bias[prompts_G]
            for prompt in (self._prompt_key, self._prompt_value):
                prompt[:] = [tensor[prompts_G] for tensor in prompt]
        sources_R = sources_WG.flatten()
        moved = (sources_R != torch.arange(len(sources_R))).nonzero().squeeze(1)
        for own in (*self._own_key, *self._own_value):
            own[moved, :, : self._length] = own[sources_R[moved], :, : self._length]
        self._width = width

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
        # Laid out for the products of every step to come, which would copy them otherwise.
        self._prompt_key.append(key.contiguous())
        self._prompt_value.append(value.contiguous())
        rows, length = self._capacity
        for own, new in ((self._own_key, key), (self._own_value, value)):  # a value may be shorter than its key
            own.append(new.new_empty(rows, new.shape[1], length, new.shape[-1]))
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2)

    def _attend_responses(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One softmax over two sets of keys: the prompt's, read once per group, and the response's own."""
        R, H, _, D = query.shape
        own_key, own_value = self._own_key[layer][:R], self._own_value[layer][:R]
        t = self._length
        own_key[:, :, t] = key[:, :, 0]
        own_value[:, :, t] = value[:, :, 0]
        W, G = self._width, R // self._width
        heads = key.shape[1]
        repeat = H // heads  # query heads that share one key head

        query_R = (query * scaling).view(R, heads, repeat, D)
        query_G = query_R.view(W, G, heads, repeat, D).permute(1, 2, 0, 3, 4).reshape(G, heads, W * repeat, D)
        prompt_scores = query_G @ self._prompt_key[layer].transpose(2, 3) + self._prompt_bias
        P = prompt_scores.shape[-1]
        scores = query.new_empty(R, heads, repeat, P + t + 1)
        scores[..., :P].view(W, G, heads, repeat, P).copy_(
            prompt_scores.view(G, heads, W, repeat, P).permute(2, 0, 1, 3, 4)
        )
        scores[..., P:] = query_R @ own_key[:, :, : t + 1].transpose(2, 3)
        weights = scores.softmax(dim=-1)
        prompt_weights = weights[..., :P].view(W, G, heads, repeat, P).permute(1, 2, 0, 3, 4)
        from_prompt = prompt_weights.reshape(G, heads, W * repeat, P) @ self._prompt_value[layer]
        from_prompt = from_prompt.view(G, heads, W, repeat, -1).permute(2, 0, 1, 3, 4)
        out = weights[..., P:] @ own_value[:, :, : t + 1]
        return out.view(W, G, heads, repeat, -1).add_(from_prompt).view(R, 1, H, -1)


class CachedDecoder:
    """transformers' own cache, on left-padded prompts."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int, max_new_tokens: int) -> Tensor:
        longest = max(len(p) for p in prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        positions = (mask.cumsum(1) - 1).clamp_(min=0)
        output = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True)
        self._cache: Any = output.past_key_values
        self._mask = mask
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

    def rearrange(self, sources_WG: Tensor) -> None:
        sources_R = sources_WG.flatten()
        self._cache.batch_select_indices(sources_R)
        self._mask = self._mask[sources_R]
