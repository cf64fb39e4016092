"""Two ways to run a model forward token by token. The loop that samples is in `engines/transformers.py`.

`SharedPromptDecoder` keeps one copy of each prompt's keys and values for all its responses, and has room for those of
the responses' next tokens; nothing is copied to append one. Responses begin at any step, beside those that run.
`CachedDecoder` uses transformers' own cache and works for any causal LM; there responses begin together. What a slot
is: `engines/branches.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from tba.engines.bands import Band
from tba.engines.branches import Ints
from tba.engines.by_prompt import ByPrompt
from tba.engines.prompt_keys import PromptKeys, ReadPrompt, ReadPrompts
from tba.policy.devices import as_tensor
from tba.types import TbaError

Read = TypeVar("Read")
"""A prompt that was read, from which slots may begin."""


class Decoder(Protocol, Generic[Read]):
    @property
    def refills(self) -> bool:
        """Whether slots may begin while others are under way."""
        ...

    def read(self, prompts: Sequence[Sequence[int]]) -> tuple[list[Read], Tensor]:
        """Read prompts; and the logits of the first token after each, (G, V)."""
        ...

    def step(self, token_R: Ints, sources_R: Ints, begun: Sequence[Read]) -> Tensor:
        """Append a token to each slot; logits of the next, (R, V).

        `sources_R` are the slots of the step before that these go on from. Sources beyond those mean the prompts that
        have `begun` since, in order. A slot that is no source is no more.
        """
        ...

    def clear(self) -> None:
        """There are no slots any more."""
        ...


class SharedPromptDecoder:
    """Owns the keys and values, and is the attention layout of its own forward passes (`tba.policy.attention`)."""

    refills = True

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder = model.get_decoder()
        self._head = model.get_output_embeddings()
        self._device = model.device
        self._prompts = PromptKeys()
        self.clear()

    def clear(self) -> None:
        self._prompts.clear()
        self._bands: list[Band] = []
        """Oldest first. Rows of the forward pass are the slots of one band after another."""
        self._row_R: Ints = np.empty(0, dtype=np.int64)
        """The row of each slot."""
        self._prompt_R: Ints = np.empty(0, dtype=np.int64)
        """The place of each slot's prompt."""

    def read(self, prompts: Sequence[Sequence[int]]) -> tuple[list[ReadPrompt], Tensor]:
        lengths_G = np.array([len(p) for p in prompts])
        G, P = len(prompts), int(lengths_G.max())
        ids_GP = np.zeros((G, P), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            ids_GP[row, : len(prompt)] = prompt
        reading = _Reading()
        hidden_GPH = self._forward(ids_GP, np.tile(np.arange(P), (G, 1)), reading)
        last_G = as_tensor(np.arange(G) * P + lengths_G - 1, self._device)
        logits: Tensor = self._head(hidden_GPH.flatten(0, 1).index_select(0, last_G))
        together = ReadPrompts(reading.keys, reading.values, lengths_G)
        return [ReadPrompt(together, row, object()) for row in range(G)], logits

    def step(self, token_R: Ints, sources_R: Ints, begun: Sequence[ReadPrompt]) -> Tensor:
        R = len(token_R)
        if begun or len(self._row_R) != R or (sources_R != np.arange(R)).any():
            self._rearrange(sources_R, begun)
        for band in self._bands:
            band.begin_step()
        position_R = self._prompts.lengths[self._prompt_R]
        ids_R1, positions_R1 = np.empty((R, 1), dtype=np.int64), np.empty((R, 1), dtype=np.int64)
        ids_R1[self._row_R, 0] = token_R
        positions_R1[self._row_R, 0] = position_R
        positions_R1[:, 0] += np.concatenate([band.lengths for band in self._bands])
        hidden_RH = self._forward(ids_R1, positions_R1, self)[:, 0]
        for band in self._bands:
            band.end_step()
        if (self._row_R != np.arange(R)).any():
            hidden_RH = hidden_RH.index_select(0, as_tensor(self._row_R, self._device))
        logits: Tensor = self._head(hidden_RH)
        return logits

    def _rearrange(self, sources_R: Ints, begun: Sequence[ReadPrompt]) -> None:
        """Slots part, leave and begin: in the bands, and among the prompts."""
        num_old = len(self._row_R)
        continued = sources_R < num_old
        fresh = np.flatnonzero(~continued)
        prompts, begun_of_fresh = np.unique(sources_R[fresh] - num_old, return_inverse=True)
        kept, arrived = self._prompts.exchange(
            self._prompt_R[sources_R[continued]], [begun[prompt] for prompt in prompts.tolist()]
        )
        self._prompt_R = np.empty(len(sources_R), dtype=np.int64)
        self._prompt_R[continued] = kept
        self._prompt_R[fresh] = arrived[begun_of_fresh]
        self._reseat(np.flatnonzero(continued), self._row_R[sources_R[continued]], fresh)
        prompt_of_row = np.empty_like(self._prompt_R)
        prompt_of_row[self._row_R] = self._prompt_R
        self._by_prompt = ByPrompt(prompt_of_row, self._prompts.num_places, self._device)

    def _reseat(self, continued: Ints, old_rows: Ints, fresh: Ints) -> None:
        """Give every slot a row: those that go on from old rows, and those that are new."""
        bands: list[tuple[Band, Ints]] = []  # with the slots at its places
        start = 0
        for band in self._bands:
            stop = start + band.num_slots
            mine = np.flatnonzero((old_rows >= start) & (old_rows < stop))
            if len(mine):
                slots = np.empty(len(mine), dtype=np.int64)
                slots[band.keep(old_rows[mine] - start)] = continued[mine]
                bands.append((band, slots))
            start = stop
        self._bands, slots_by_band = [], []
        for band, slots in bands:
            if self._bands and self._bands[-1].fits(band.lengths):
                self._bands[-1].absorb(band)
            else:
                self._bands.append(band)
            slots_by_band.append(slots)
        if len(fresh):
            if not self._bands or not self._bands[-1].fits(np.zeros_like(fresh)):
                self._bands.append(Band(self._prompts.keys, self._prompts.values))
            self._bands[-1].begin(len(fresh))
            slots_by_band.append(fresh)
        order = np.concatenate(slots_by_band)
        self._row_R = np.empty(len(order), dtype=np.int64)
        self._row_R[order] = np.arange(len(order))

    def _forward(self, ids: Ints, positions: Ints, layout: Any) -> Tensor:
        output = self._decoder(
            input_ids=as_tensor(ids, self._device),
            position_ids=as_tensor(positions, self._device),
            use_cache=False,
            layout=layout,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """One softmax over two sets of keys: the prompt's, read once for all its slots, and the slot's own."""
        R, H, _, D = query.shape
        heads = key.shape[1]
        repeat = H // heads  # query heads that share one key head
        query_R = (query * scaling).view(R, heads, repeat, D)
        by_prompt, prompts = self._by_prompt, self._prompts

        prompt_scores = (by_prompt.spread(query_R) @ prompts.keys[layer].transpose(2, 3)).add_(prompts.bias)
        scores_R = by_prompt.collect(prompt_scores, repeat)
        if len(self._bands) == 1:
            weights, out = self._bands[0].attend(layer, query_R, key, value, scores_R)
        else:
            sizes = [band.num_slots for band in self._bands]
            split = zip(*(each.split(sizes) for each in (query_R, key, value, scores_R)), strict=True)
            parts = [band.attend(layer, *part) for band, part in zip(self._bands, split, strict=True)]
            weights, out = (torch.cat(each) for each in zip(*parts, strict=True))
        from_prompt = by_prompt.spread(weights) @ prompts.values[layer]
        return out.add_(by_prompt.collect(from_prompt, repeat)).view(R, 1, H, -1)


class _Reading:
    """The attention layout in which prompts are read: causal, and keeps the keys and values."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Over right-padded prompts: padding lies behind every real position."""
        if layer != len(self.keys):
            raise TbaError("model.attention = 'shared' does not fit a model whose layers repeat: use 'padded'")
        self.keys.append(key)
        self.values.append(value)
        gqa = query.shape[1] != key.shape[1]
        out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=gqa)
        return out.transpose(1, 2)


class CachedDecoder:
    """transformers' own cache, on left-padded prompts.

    The cache has one length for all, so slots begin together and nothing joins them: rows of responses that have ended
    stay empty until the last of the batch is done.
    """

    refills = False

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._device = model.device

    def clear(self) -> None:
        self._cache: Any = None

    def read(self, prompts: Sequence[Sequence[int]]) -> tuple[list[int], Tensor]:
        longest = max(len(p) for p in prompts)
        ids = np.array([[0] * (longest - len(p)) + list(p) for p in prompts])
        mask = np.array([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
        self._mask = as_tensor(mask, self._device)
        output = self._model(
            input_ids=as_tensor(ids, self._device),
            attention_mask=self._mask,
            position_ids=as_tensor((mask.cumsum(1) - 1).clip(0), self._device),
            use_cache=True,
        )
        self._cache = output.past_key_values
        logits: Tensor = output.logits[:, -1]
        return list(range(len(prompts))), logits

    def step(self, token_R: Ints, sources_R: Ints, begun: Sequence[int]) -> Tensor:
        rows_R = np.array(begun)[sources_R] if begun else sources_R
        if len(rows_R) != len(self._mask) or (rows_R != np.arange(len(rows_R))).any():
            rows = as_tensor(rows_R, self._device)
            self._cache.batch_select_indices(rows)
            self._mask = self._mask[rows]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(token_R), 1)], dim=1)
        output = self._model(
            input_ids=as_tensor(token_R, self._device).unsqueeze(1),
            attention_mask=self._mask,
            position_ids=self._mask.sum(1, keepdim=True) - 1,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits
