"""The model under test: several sampled replies to each attack, batched, the same for the same attack."""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from tba.types import Prompt, TbaError


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
        device: str = "auto",
    ) -> None:
        # Imported here: models are loaded in the reward process, and settings are checked without torch.
        from tba.engines.transformers import TransformersEngine
        from tba.engines.truncation import Truncation
        from tba.policy.devices import device_of, moved
        from tba.policy.policy import load_model, load_tokenizer

        place = device_of(device, "task.victim_device")
        self._tokenizer = load_tokenizer(path)
        self._chat = prompt == "chat" or (prompt == "auto" and self._tokenizer.chat_template is not None)
        if self._chat and self._tokenizer.chat_template is None:
            raise TbaError(f"task.victim_prompt = 'chat' needs a chat template, and {path!r} has none: use 'plain'")
        self._engine = TransformersEngine(
            moved(load_model(path, setting="task.victim"), place),
            self._tokenizer,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            truncation=Truncation(top_p=top_p),
        )
        self._num_replies, self._batch_size = num_replies, batch_size

    def __call__(self, attacks: Sequence[str]) -> list[list[str]]:
        from tba.engines.base import generate

        texts = [self._framed(attack) for attack in attacks]
        ids = [self._tokenizer(text, add_special_tokens=not self._chat).input_ids for text in texts]
        prompts = [Prompt(str(i), text, tuple(row)) for i, (text, row) in enumerate(zip(texts, ids, strict=True))]
        seeds = [xxhash.xxh3_64_intdigest(attack.encode()) for attack in attacks]
        replies = generate(self._engine, prompts, self._num_replies, num_rows=self._batch_size, seeds=seeds)
        return [[reply.text for reply in row] for row in replies]

    def _framed(self, attack: str) -> str:
        if not self._chat:
            return attack
        messages = [{"role": "user", "content": attack}]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
