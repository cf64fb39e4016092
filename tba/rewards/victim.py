"""The model under test: several sampled replies to each attack, batched, the same for the same attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from tba.rewards.pretrained import from_pretrained
from tba.types import TbaError


class Victim:
    """Replies follow from the seed and the attack alone, whatever else is in the batch (but for rounding)."""

    def __init__(
        self,
        path: str,
        *,
        prompt: str,
        temperature: float,
        top_p: float,
        max_new_tokens: int,
        num_replies: int,
        batch_size: int,
        seed: int,
    ) -> None:
        self._model, self._tokenizer = from_pretrained("task.victim", path, "AutoModelForCausalLM", padding="left")
        self._chat = prompt == "chat" or (prompt == "auto" and self._tokenizer.chat_template is not None)
        if self._chat and self._tokenizer.chat_template is None:
            raise TbaError(f"task.victim_prompt = 'chat' needs a chat template, and {path!r} has none: use 'plain'")
        self._temperature, self._top_p = temperature, top_p
        self._max_new_tokens, self._num_replies = max_new_tokens, num_replies
        self._batch_size, self._seed = batch_size, seed

    def __call__(self, attacks: Sequence[str]) -> list[list[str]]:
        texts = [self._framed(attack) for attack in attacks]
        # Neighbours of about one length pad little.
        order = sorted(range(len(attacks)), key=lambda i: len(texts[i]))
        at_a_time = max(1, self._batch_size // self._num_replies)
        replies: dict[int, list[str]] = {}
        for start in range(0, len(order), at_a_time):
            part = order[start : start + at_a_time]
            made = self._generate([texts[i] for i in part], [attacks[i] for i in part])
            replies |= dict(zip(part, made, strict=True))
        return [replies[i] for i in range(len(attacks))]

    def _framed(self, attack: str) -> str:
        if not self._chat:
            return attack
        messages = [{"role": "user", "content": attack}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    def _generate(self, texts: Sequence[str], attacks: Sequence[str]) -> list[list[str]]:
        import torch
        from transformers import LogitsProcessor, TemperatureLogitsWarper, TopPLogitsWarper

        N, L = self._num_replies, self._max_new_tokens
        uniform_RL = np.concatenate([self._rng(attack).random((N, L), dtype=np.float32) for attack in attacks])

        class SeededChoice(LogitsProcessor):
            """Draws a token by each row's own random numbers, and leaves only that one to be chosen."""

            def __init__(self) -> None:
                self.step = 0

            def __call__(self, input_ids: Any, scores: Any) -> Any:
                cumulative_RV = scores.float().softmax(dim=-1).cumsum(dim=-1)
                uniform_R1 = torch.from_numpy(uniform_RL[:, self.step, None]) * cumulative_RV[:, -1:]
                drawn_R1 = torch.searchsorted(cumulative_RV, uniform_R1, right=True).clamp_(max=scores.shape[1] - 1)
                self.step += 1
                return torch.full_like(scores, float("-inf")).scatter_(1, drawn_R1, 0.0)

        warpers: list[LogitsProcessor] = [TemperatureLogitsWarper(self._temperature)]
        if self._top_p < 1:
            warpers.append(TopPLogitsWarper(self._top_p))
        encoded = self._tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=not self._chat)
        ids_RP, seen_RP = (encoded[name].repeat_interleave(N, dim=0) for name in ("input_ids", "attention_mask"))
        with torch.inference_mode():
            made_RL = self._model.generate(
                ids_RP,
                attention_mask=seen_RP,
                max_new_tokens=L,
                do_sample=False,  # the processor has chosen
                logits_processor=[*warpers, SeededChoice()],
                pad_token_id=self._tokenizer.pad_token_id,
            )[:, ids_RP.shape[1] :]
        decoded = self._tokenizer.batch_decode(made_RL, skip_special_tokens=True)
        return [decoded[i : i + N] for i in range(0, len(decoded), N)]

    def _rng(self, attack: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, xxhash.xxh3_64_intdigest(attack.encode())])
