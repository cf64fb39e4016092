"""The embedded engine: batched sampling from a transformers model, prompts read once, finished rows leaving."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.engines.decoders import CachedDecoder, Decoder, SharedPromptDecoder
from tba.policy import import_weights, uses_shared_prompt
from tba.types import Prompt, Response, WeightUpdate

COMPACT_BELOW = 0.75
"""Finished rows leave once fewer than this share of the slots is active: leaving costs a copy of the cache."""


class TransformersEngine:
    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        temperature: float,
        max_new_tokens: int,
        seed: int,
        bf16: bool = False,
        stop_text: str = "",
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._bf16 = bf16
        self._generator = torch.Generator().manual_seed(seed)
        self._stop = torch.tensor(sorted(stop_tokens(model, tokenizer, stop_text)))
        self._version = -1  # as loaded; the first publication is newer

    @property
    def version(self) -> int:
        return self._version

    def load(self, update: WeightUpdate) -> None:
        import_weights(self._model, update.tensors)
        self._version = update.version

    def state(self) -> dict[str, Any]:
        return {"generator": base64.b64encode(self._generator.get_state().numpy().tobytes()).decode()}

    def restore(self, state: dict[str, Any]) -> None:
        raw = np.frombuffer(base64.b64decode(state["generator"]), dtype=np.uint8)
        self._generator.set_state(torch.from_numpy(raw.copy()))

    def generate(
        self,
        prompts: Sequence[Prompt],
        num_responses: int,
        *,
        greedy: bool = False,
        temperature: float | None = None,
        between_steps: Callable[[], None] | None = None,
    ) -> list[list[Response]]:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            rows = self._decode(
                prompts, num_responses, 0.0 if greedy else temperature or self._temperature, between_steps
            )
        texts = self._tokenizer.batch_decode([tokens.tolist() for tokens, _, _ in rows], skip_special_tokens=True)
        stop = set(self._stop.tolist())
        responses = [
            Response(tokens, logprobs, versions, text, int(tokens[-1]) in stop)
            for (tokens, logprobs, versions), text in zip(rows, texts, strict=True)
        ]
        return [responses[i : i + num_responses] for i in range(0, len(responses), num_responses)]

    def _decode(
        self,
        prompts: Sequence[Prompt],
        num_responses: int,
        temperature: float,
        between_steps: Callable[[], None] | None,
    ) -> list[tuple[np.ndarray, np.ndarray, tuple[tuple[int, int], ...]]]:
        """The decoding loop: sample for every slot, note what active ones drew, drop those that have finished."""
        G, S, L = len(prompts), num_responses, self._max_new_tokens
        decoder: Decoder = (SharedPromptDecoder if uses_shared_prompt(self._model) else CachedDecoder)(self._model)
        logits_RV = decoder.prefill([p.tokens for p in prompts], S, L).repeat_interleave(S, dim=0)
        tokens_RL = torch.zeros(G * S, L, dtype=torch.long)
        logprobs_RL = torch.zeros(G * S, L)
        lengths_R = torch.zeros(G * S, dtype=torch.long)
        row_of_slot_GS = torch.arange(G * S).view(G, S)
        active_GS = torch.ones(G, S, dtype=torch.bool)
        versions: list[int] = []
        for t in range(L):
            drawn, logprobs = self._sample(logits_RV, temperature)
            active = active_GS.flatten()
            rows = row_of_slot_GS.flatten()[active]
            tokens_RL[rows, t] = drawn[active]
            logprobs_RL[rows, t] = logprobs[active]
            lengths_R[rows] = t + 1
            versions.append(self._version)
            active_GS = active_GS & ~torch.isin(drawn, self._stop).view_as(active_GS)
            num_active = int(active_GS.sum())
            if num_active == 0 or t == L - 1:
                break
            if num_active < COMPACT_BELOW * active_GS.numel():
                slots_GS, still_active_GS = _compact(active_GS)
                decoder.keep(slots_GS)
                drawn = drawn[slots_GS.flatten()]
                row_of_slot_GS = row_of_slot_GS.flatten()[slots_GS]
                active_GS = still_active_GS
            if between_steps is not None:
                between_steps()
            logits_RV = decoder.step(drawn)
        return [
            (
                tokens_RL[row, :n].to(torch.int32).numpy().copy(),
                logprobs_RL[row, :n].numpy().copy(),
                _runs(versions[:n]),
            )
            for row, n in enumerate(lengths_R.tolist())
        ]

    def _sample(self, logits_RV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """Draw by inverting the cumulative distribution: one pass over the vocabulary, no sort. 0 is greedy."""
        logprobs_RV = (logits_RV.float() / (temperature or self._temperature)).log_softmax(dim=-1)
        if not temperature:
            drawn_R1 = logprobs_RV.argmax(dim=-1, keepdim=True)
        else:
            cumulative_RV = logprobs_RV.exp().cumsum_(dim=-1)
            uniform_R1 = torch.rand(len(logits_RV), 1, generator=self._generator) * cumulative_RV[:, -1:]
            drawn_R1 = torch.searchsorted(cumulative_RV, uniform_R1, right=True).clamp_(max=logits_RV.shape[1] - 1)
        return drawn_R1.squeeze(1), logprobs_RV.gather(1, drawn_R1).squeeze(1)


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop_text: str = "") -> set[int]:
    """Every token that ends a response: the tokenizer's, those of the generation config, and those with this text."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, Iterable) else [configured]
    found = {int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None}
    if stop_text:
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        found |= {token for token, text in enumerate(texts) if stop_text in text}
    return found


def _compact(active_GS: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest rectangle that holds the active slots: their old indices, and which of the new ones are real.

    A prompt with fewer active responses than another fills its row up with slots that go on unheeded.
    """
    S = active_GS.shape[1]
    counts_G = active_GS.sum(1)
    width = int(counts_G.max())
    order_GS = active_GS.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
    alive_G = counts_G > 0
    slots_GS = (order_GS + S * torch.arange(len(counts_G)).unsqueeze(1))[alive_G]
    return slots_GS, torch.arange(width) < counts_G[alive_G].unsqueeze(1)


def _runs(versions: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((version, len(list(run))) for version, run in groupby(versions))
