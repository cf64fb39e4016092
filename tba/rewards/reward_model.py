"""A reward model as a reward function: a sequence classifier with one output, loaded in the reward process.

`encode_scored` is the one place that says what such a model reads; `tba reward-model` trains on the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tba.policy.names import read_model_config
from tba.rewards.batches import judged_in_batches
from tba.rewards.functions import RewardFactory
from tba.rewards.pretrained import from_pretrained
from tba.types import TbaError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PATH = "tba.rewards.reward_model:RewardModel"


def reward_model(path: str, **settings: Any) -> RewardFactory:
    """What to give a Scorer."""
    return RewardFactory(PATH, {"path": path, **settings})


class RewardModel:
    """Scores prompt and response together."""

    def __init__(
        self,
        path: str,
        *,
        batch_size: int = 16,
        normalize_mean: float = 0.0,
        normalize_std: float = 1.0,
        no_eos_score: float | None = None,
        max_tokens: int | None = None,
        device: str = "auto",
        name: str = "reward_model",
        device_setting: str = "reward.model_device",
    ) -> None:
        check_reward_model(path)
        self._model, self._tokenizer = from_pretrained(
            "reward model",
            path,
            "AutoModelForSequenceClassification",
            device=device,
            device_setting=device_setting,
        )
        self.__name__ = name  # what metrics call it
        self._path = path
        self._batch_size = batch_size
        self._mean, self._std, self._no_eos_score = normalize_mean, normalize_std, no_eos_score
        context = getattr(self._model.config, "max_position_embeddings", None)
        limits = (max_tokens, context, self._tokenizer.model_max_length)
        self._max_tokens = min(limit for limit in limits if limit is not None)
        # Classifiers of decoders find the last token by the padding id, so the model must have one.
        padding = self._model.config.get_text_config().pad_token_id
        self._padding = padding if padding is not None else self._tokenizer.pad_token_id
        if self._padding is None:
            self._batch_size, self._padding = 1, 0

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        finished: Sequence[bool],
        log_metric: Callable[[str, float], None] = lambda name, value: None,
        **columns: Any,
    ) -> list[float]:
        asked = zip(prompts, completions, finished, strict=True)
        rows = [encode_scored(self._tokenizer, *one, self._path) for one in asked]
        log_metric("truncated", sum(len(row) > self._max_tokens for row in rows) / max(1, len(rows)))
        cut = [self._cut(row) for row in rows]
        scores = judged_in_batches(cut, self._scores, length=len, batch_size=self._batch_size)
        scores = [(score - self._mean) / self._std for score in scores]
        if self._no_eos_score is None:
            return scores
        return [score if ended else self._no_eos_score for score, ended in zip(scores, finished, strict=True)]

    def _cut(self, row: list[int]) -> list[int]:
        """The end, which is the response; the token that opens every input stays where it is."""
        if len(row) <= self._max_tokens:
            return row
        first = row[:1] if row[0] in (self._tokenizer.bos_token_id, self._tokenizer.cls_token_id) else []
        return first + row[len(row) - self._max_tokens + len(first) :]

    def _scores(self, rows: Sequence[list[int]]) -> list[float]:
        """Of rows of similar length."""
        import torch

        from tba.policy.devices import as_tensor

        device = self._model.device
        # Padded on the right: learned positions then start at 0 for every row.
        ids_RS = np.full((len(rows), max(map(len, rows))), self._padding)
        seen_RS = np.zeros(ids_RS.shape, np.int64)
        for r, row in enumerate(rows):
            ids_RS[r, : len(row)], seen_RS[r, : len(row)] = row, 1
        with torch.inference_mode():
            logits = self._model(input_ids=as_tensor(ids_RS, device), attention_mask=as_tensor(seen_RS, device)).logits
        scores: list[float] = logits[:, 0].float().tolist()
        return scores


def encode_scored(
    tokenizer: PreTrainedTokenizerBase, prompt: Any, completion: Any, finished: bool, name: str
) -> list[int]:
    """The tokens a reward model reads, by TRL's convention: the chat template for conversations, whose last message
    is the response; else prompt and response as one text, closed by the end-of-sequence token if it was finished."""
    if isinstance(prompt, str):
        tokens: list[int] = list(tokenizer(prompt + completion).input_ids)
        end = tokenizer.eos_token_id
        return [*tokens, end] if finished and end is not None and tokens[-1:] != [end] else tokens
    if tokenizer.chat_template is None:
        raise TbaError(f"{name} has no chat template, but the prompts are chats: use plain ones, or another model")
    text = tokenizer.apply_chat_template([*prompt, *completion], tokenize=False)
    return list(tokenizer(str(text), add_special_tokens=False).input_ids)


def check_reward_model(path: str) -> None:
    """Raise TbaError unless the model's own configuration says that it gives one number. Loads no weights."""
    config = read_model_config(path, "reward model")
    kinds = config.get("architectures") or []
    if kinds and not any(kind.endswith("ForSequenceClassification") for kind in kinds):
        raise TbaError(
            f"reward model {path!r} is a {kinds[0]}, not a sequence classifier: train one with tba reward-model"
        )
    # transformers leaves out what is at its default, which is two labels.
    num_outputs = config.get("num_labels") or len(config.get("id2label") or (0, 1))
    if num_outputs != 1:
        raise TbaError(
            f"reward model {path!r} has {num_outputs} outputs: a reward is one number, so use a model trained with "
            "num_labels = 1, for example by tba reward-model"
        )
