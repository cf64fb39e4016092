"""The embedded engine: batched sampling from a transformers model; what responses have in common is computed once."""

from __future__ import annotations

import base64
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
        self._top_p = top_p
        self._generator = torch.Generator().manual_seed(seed)
        self._stop = sorted(stop_tokens(model, tokenizer, stop_text))
        self._version = NEVER_PUBLISHED
        self._layers = PackedLayers(model, precision)
        # In int8, unlike in bfloat16, a prompt's few huge activations would spoil every token after it.
        self._reads_prompts_exactly = precision == "int8"

    @property
    def version(self) -> Version:
        return self._version

    def load(self, update: WeightUpdate) -> None:
        import_weights(self._model, update.tensors)
        self._layers.pack()
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
        full_precision: bool = False,
        between_steps: Callable[[], None] | None = None,
        uniform_NL: NDArray[np.float32] | None = None,
    ) -> list[list[Response]]:
        """As in `Engine`. What is drawn is decided by numbers of [0, 1) for each response and token, if given."""
        with torch.inference_mode():
            draws = None if greedy else self._draws(uniform_NL)
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
        self._layers.set_full_precision(full_precision or self._reads_prompts_exactly)
        logits_RV = decoder.prefill([p.tokens for p in prompts], num_responses)
        self._layers.set_full_precision(full_precision)
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

    def _draws(self, uniform_NL: NDArray[np.float32] | None) -> Callable[[NDArray[np.int64], int], Tensor]:
        """Numbers for the responses that draw their t-th token."""
        if uniform_NL is not None:
            return lambda active_A, t: torch.from_numpy(uniform_NL[active_A, t])
        return lambda active_A, t: torch.rand(len(active_A), generator=self._generator)


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
