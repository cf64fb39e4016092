"""The embedded engine: batched sampling from a transformers model; what responses have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.engines.branches import Branches
from tba.engines.decoders import CachedDecoder, Decoder, SharedPromptDecoder
from tba.engines.numbers import response_keys, uniform
from tba.engines.packed_linear import PackedLayers, Precision
from tba.engines.sampling import draw_tokens
from tba.policy import import_weights, uses_shared_prompt
from tba.types import NEVER_PUBLISHED, Prompt, Response, TokenVersions, Version, WeightUpdate


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
        precision: Precision = "float32",
        stop_text: str = "",
        top_p: float = 1.0,
    ) -> None:
        """`precision` is that of the copy of the weights it explores with; the model's linear layers are replaced.

        Below 1, `top_p` samples from a nucleus, which has another density than the policy: not for training data.
        """
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._max_new_tokens = max_new_tokens
        self._bf16 = bf16
        self._top_p = top_p
        self._seed = seed
        self._num_sampled = 0
        self._stop = sorted(stop_tokens(model, tokenizer, stop_text))
        self._version = NEVER_PUBLISHED
        # Under autocast plain layers choose the kernel; a packed one would stay float32.
        self._layers = None if bf16 else PackedLayers(model, precision)

    @property
    def version(self) -> Version:
        return self._version

    def load(self, update: WeightUpdate) -> None:
        import_weights(self._model, update.tensors)
        if self._layers is not None:
            self._layers.pack()
        self._version = update.version

    def state(self) -> dict[str, Any]:
        return {"seed": self._seed, "num_sampled": self._num_sampled}

    def restore(self, state: dict[str, Any]) -> None:
        # Checkpoints of tba 0.1 hold the state of another generator; what they sampled, this one never did.
        self._seed, self._num_sampled = state.get("seed", self._seed), state.get("num_sampled", 0)

    def generate(
        self,
        prompts: Sequence[Prompt],
        num_responses: int,
        *,
        greedy: bool = False,
        temperature: float | None = None,
        full_precision: bool = False,
        between_steps: Callable[[], None] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Response]]:
        """As in `Engine`. Seeds, one for each prompt, decide what is sampled; without them every prompt is new."""
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            draws = None if greedy else self._draws(len(prompts), num_responses, seeds)
            rows = self._decode(
                prompts, num_responses, temperature or self._temperature, draws, full_precision, between_steps
            )
        texts = self._tokenizer.batch_decode([tokens.tolist() for tokens, _, _ in rows], skip_special_tokens=True)
        stop = set(self._stop)
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
        draws: Callable[[NDArray[np.int64], int], Tensor] | None,
        full_precision: bool,
        between_steps: Callable[[], None] | None,
    ) -> list[tuple[np.ndarray, np.ndarray, TokenVersions]]:
        """The decoding loop: every response draws from its slot, then the slots of those that go on take a token."""
        N, L = len(prompts) * num_responses, self._max_new_tokens
        decoder: Decoder = (SharedPromptDecoder if uses_shared_prompt(self._model) else CachedDecoder)(self._model)
        branches = Branches(len(prompts), num_responses)
        self._set_full_precision(True)  # a coarse reading of the prompt would spoil every token after it
        logits_RV = decoder.prefill([p.tokens for p in prompts], num_responses)
        self._set_full_precision(full_precision)
        tokens_NL = np.zeros((N, L), dtype=np.int32)
        logprobs_NL = np.zeros((N, L), dtype=np.float32)
        lengths_N = np.zeros(N, dtype=np.int64)
        versions: list[Version] = []
        for t in range(L):
            uniform_A = None if draws is None else draws(branches.active_A, t)
            drawn_A, logprobs_A = draw_tokens(logits_RV, branches.slot_A, temperature, uniform_A, self._top_p)
            tokens_NL[branches.active_A, t] = drawn_A
            logprobs_NL[branches.active_A, t] = logprobs_A
            lengths_N[branches.active_A] = t + 1
            versions.append(self._version)
            ended_A = np.isin(drawn_A, self._stop)
            branches.finish(ended_A)
            if not len(branches.active_A) or t == L - 1:
                break
            token_R, sources_R = branches.extend(drawn_A[~ended_A])
            if sources_R is not None:
                decoder.rearrange(sources_R)
            if between_steps is not None:
                between_steps()
            logits_RV = decoder.step(torch.from_numpy(token_R))
        return [
            (tokens_NL[row, :n].copy(), logprobs_NL[row, :n].copy(), _runs(versions[:n]))
            for row, n in enumerate(lengths_N.tolist())
        ]

    def _draws(
        self, num_prompts: int, num_responses: int, seeds: Sequence[int] | None
    ) -> Callable[[NDArray[np.int64], int], Tensor]:
        """Numbers for the responses that draw their t-th token."""
        if seeds is None:
            requests = [(self._seed, self._num_sampled + i) for i in range(num_prompts)]
            self._num_sampled += num_prompts
        else:
            requests = [(self._seed, seed) for seed in seeds]
        key_N = np.concatenate([response_keys(request, num_responses) for request in requests])
        return lambda active_A, t: torch.from_numpy(uniform(key_N[active_A], np.full(len(active_A), t)))

    def _set_full_precision(self, full_precision: bool) -> None:
        if self._layers is not None:
            self._layers.set_full_precision(full_precision)


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, stop_text: str = "") -> set[int]:
    """Every token that ends a response: the tokenizer's, those of the generation config, and those with this text."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, Iterable) else [configured]
    found = {int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None}
    if stop_text:
        texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        found |= {token for token, text in enumerate(texts) if stop_text in text}
    return found


def _runs(versions: Sequence[Version]) -> TokenVersions:
    return tuple((version, len(list(run))) for version, run in groupby(versions))
