"""Two ways to run a model forward token by token. The loop that samples is in `engines/transformers.py`.

`SharedPromptDecoder` keeps one copy of each prompt's keys and values for all its responses, and has room for those of
the responses' next tokens; nothing is copied to append one. `CachedDecoder` uses transformers' own cache and works for
any causal LM. What a slot is: `engines/branches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from tba.engines.branches import Ints
from tba.engines.by_prompt import ByPrompt
from tba.types import TbaError


class Decoder(Protocol):
    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int) -> Tensor:
        """Read G prompts, with one slot each and later `num_responses` at most; logits of the first token, (G, V)."""
        ...

    def step(self, tokens_R: Tensor) -> Tensor:
        """Append one token to each slot; logits of the next, (R, V)."""
        ...

    def rearrange(self, sources_R: Ints) -> None:
        """There are as many slots as sources now, each going on from the old slot given for it."""
        ...


DROP_PROMPTS_BELOW = 0.75
"""Prompts with no slot left leave once fewer than this share remains: their keys and values are copied for that."""
BLOCK = 16
"""Room for the responses' keys and values grows by as many tokens. Products read all of it, the empty end too: memory
that is read without gaps arrives more than twice as fast."""


class SharedPromptDecoder:
    """Owns the keys and values, and is the attention layout of its own forward passes (`tba.attention`)."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()

    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int) -> Tensor:
        ids_GP = pad_sequence([torch.tensor(p) for p in prompts], batch_first=True)
        self._lengths_G = np.array([len(p) for p in prompts])
        G, P = ids_GP.shape
        padded_GP = torch.arange(P) >= torch.from_numpy(self._lengths_G).unsqueeze(1)
        self._prompt_bias = torch.zeros(G, 1, 1, P).masked_fill_(padded_GP[:, None, None], float("-inf"))
        self._seat(np.arange(G))
        self._max_slots = G * num_responses
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
        if self._length % BLOCK == 0:
            self._add_room()
        positions_R = torch.from_numpy(self._lengths_G[self._prompt_R] + self._length)
        hidden_R1H = self._forward(tokens_R.unsqueeze(1), positions_R.unsqueeze(1))
        self._length += 1
        logits: Tensor = self._head(hidden_R1H[:, 0])
        return logits

    def rearrange(self, sources_R: Ints) -> None:
        moved = np.flatnonzero(sources_R != np.arange(len(sources_R)))
        to, origin = torch.from_numpy(moved), torch.from_numpy(sources_R[moved])
        for own in (*self._own_key, *self._own_value):
            own[to, :, : self._length] = own[origin, :, : self._length]
        prompt_R = self._prompt_R[sources_R]
        left = np.unique(prompt_R)
        if len(left) < DROP_PROMPTS_BELOW * len(self._lengths_G):
            prompt_R = np.searchsorted(left, prompt_R)
            self._lengths_G = self._lengths_G[left]
            for prompt in (self._prompt_key, self._prompt_value):
                prompt[:] = [tensor[torch.from_numpy(left)] for tensor in prompt]
            self._prompt_bias = self._prompt_bias[torch.from_numpy(left)]
        self._seat(prompt_R)

    def _add_room(self) -> None:
        for own in (self._own_key, self._own_value):
            for layer, tensor in enumerate(own):
                # Zeros, since memory as it comes might hold what no weight of zero makes a number.
                own[layer] = pad(tensor, (0, 0, 0, BLOCK))

    def _seat(self, prompt_R: Ints) -> None:
        self._prompt_R = prompt_R
        self._by_prompt = ByPrompt(prompt_R, len(self._lengths_G))

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
        for own, new in ((self._own_key, key), (self._own_value, value)):  # a value may be shorter than its key
            own.append(new.new_zeros(self._max_slots, new.shape[1], 0, new.shape[-1]))
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2)

    def _attend_responses(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One softmax over two sets of keys: the prompt's, read once per group, and the response's own."""
        R, H, _, D = query.shape
        t = self._length
        own_key, own_value = self._own_key[layer][:R], self._own_value[layer][:R]
        own_key[:, :, t] = key[:, :, 0]
        own_value[:, :, t] = value[:, :, 0]
        heads = key.shape[1]
        repeat = H // heads  # query heads that share one key head
        query_R = (query * scaling).view(R, heads, repeat, D)

        by_prompt = self._by_prompt
        prompt_scores = by_prompt.spread(query_R) @ self._prompt_key[layer].transpose(2, 3) + self._prompt_bias
        P = prompt_scores.shape[-1]
        own_scores = query_R @ own_key.transpose(2, 3)
        own_scores[..., t + 1 :] = float("-inf")
        weights = torch.cat([by_prompt.collect(prompt_scores, repeat), own_scores], dim=-1).softmax(dim=-1)
        from_prompt = by_prompt.spread(weights[..., :P]) @ self._prompt_value[layer]
        out = weights[..., P:] @ own_value
        return out.add_(by_prompt.collect(from_prompt, repeat)).view(R, 1, H, -1)


class CachedDecoder:
    """transformers' own cache, on left-padded prompts."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]], num_responses: int) -> Tensor:
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

    def rearrange(self, sources_R: Ints) -> None:
        sources = torch.from_numpy(sources_R)
        self._cache.batch_select_indices(sources)
        self._mask = self._mask[sources]
