"""Classifiers of replies: log-probabilities that a reply is harmful.

Two kinds: a sequence classifier (one output through a sigmoid, or several labels, one of which is named), and a guard,
a causal LM that reads attack and reply in its chat template and answers with a word such as `unsafe`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tba.rewards.batches import judged_in_batches
from tba.rewards.pretrained import from_pretrained
from tba.types import TbaError

Pair = tuple[str, str]
"""An attack and one reply to it."""
LogScores = Callable[[Sequence[Pair]], list[float]]
MAX_TOKENS = 512
"""Longer input is cut: replies are short, and most classifiers read no more."""


def num_characters(pair: Pair) -> int:
    return sum(map(len, pair))


def load_harm_classifier(
    path: str,
    *,
    kind: str,
    label: str | None,
    reads_attack: bool,
    prefix: str,
    batch_size: int,
    device: str = "auto",
) -> LogScores:
    if kind == "guard":
        return Guard(path, word=label or "", prefix=prefix, batch_size=batch_size, device=device)
    return SequenceClassifier(path, label=label, reads_attack=reads_attack, batch_size=batch_size, device=device)


def _load(path: str, auto_class: str, padding: str, device: str) -> tuple[Any, Any]:
    return from_pretrained(
        "task.classifier", path, auto_class, padding=padding, device=device, device_setting="task.classifier_device"
    )


class SequenceClassifier:
    def __init__(
        self, path: str, *, label: str | None, reads_attack: bool, batch_size: int, device: str = "auto"
    ) -> None:
        self._model, self._tokenizer = _load(path, "AutoModelForSequenceClassification", "right", device)
        config = self._model.config
        if config.pad_token_id is None:  # decoders look for the last token that is not padding
            config.pad_token_id = self._tokenizer.pad_token_id
        self._index = _label_index(path, {int(i): name for i, name in config.id2label.items()}, label)
        self._independent = config.num_labels == 1 or config.problem_type == "multi_label_classification"
        self._max_tokens = min(MAX_TOKENS, getattr(config, "max_position_embeddings", MAX_TOKENS) or MAX_TOKENS)
        if config.model_type == "roberta":
            self._max_tokens = min(self._max_tokens, config.max_position_embeddings - config.pad_token_id - 1)
        self._reads_attack, self._batch_size = reads_attack, batch_size

    def __call__(self, pairs: Sequence[Pair]) -> list[float]:
        return judged_in_batches(pairs, self._log_scores, length=num_characters, batch_size=self._batch_size)

    def _log_scores(self, pairs: Sequence[Pair]) -> list[float]:
        import torch
        from torch.nn.functional import logsigmoid

        from tba.policy.devices import as_tensor

        device = self._model.device
        texts = ([a for a, _ in pairs], [r for _, r in pairs]) if self._reads_attack else ([r for _, r in pairs],)
        encoded = self._tokenizer(
            *texts, padding=True, truncation=True, max_length=self._max_tokens, return_tensors="np"
        )
        with torch.inference_mode():
            logits_RC = self._model(
                input_ids=as_tensor(encoded["input_ids"], device),
                attention_mask=as_tensor(encoded["attention_mask"], device),
            ).logits.float()
        # Labels of which several may hold, and a single output, are each a yes or no of their own.
        log_scores_RC = logsigmoid(logits_RC) if self._independent else logits_RC.log_softmax(dim=-1)
        found: list[float] = log_scores_RC[:, self._index].tolist()
        return found


class Guard:
    """Log-probability of the first token of a word, where the guard gives its verdict."""

    def __init__(self, path: str, *, word: str, prefix: str, batch_size: int, device: str = "auto") -> None:
        self._model, self._tokenizer = _load(path, "AutoModelForCausalLM", "left", device)
        if self._tokenizer.chat_template is None:
            raise TbaError(f"task.classifier = {path!r} has no chat template, which a guard needs")
        tokens = self._tokenizer(word, add_special_tokens=False).input_ids
        if not tokens:
            raise TbaError(f"task.classifier_label = {word!r} is no word to the guard's tokenizer")
        self._token, self._prefix, self._batch_size = int(tokens[0]), prefix, batch_size

    def __call__(self, pairs: Sequence[Pair]) -> list[float]:
        return judged_in_batches(pairs, self._log_scores, length=num_characters, batch_size=self._batch_size)

    def _log_scores(self, pairs: Sequence[Pair]) -> list[float]:
        import torch

        from tba.policy.devices import as_tensor

        device = self._model.device
        texts = [self._framed(*pair) for pair in pairs]
        encoded: Any = self._tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="np")
        seen_RS = as_tensor(encoded["attention_mask"], device)
        with torch.inference_mode():
            logits_RV = self._model(
                input_ids=as_tensor(encoded["input_ids"], device),
                attention_mask=seen_RS,
                position_ids=(seen_RS.cumsum(1) - 1).clamp(min=0),  # padding is on the left
                logits_to_keep=1,
            ).logits[:, -1]
        found: list[float] = logits_RV.float().log_softmax(dim=-1)[:, self._token].tolist()
        return found

    def _framed(self, attack: str, reply: str) -> str:
        messages = [{"role": "user", "content": attack}, {"role": "assistant", "content": reply}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return f"{text}{self._prefix}"


def _label_index(path: str, names: dict[int, str], label: str | None) -> int:
    """The output that means harmful."""
    if len(names) == 1:
        return 0
    listed = ", ".join(names.values())
    if label is None:
        raise TbaError(f"task.classifier_label is missing: {path!r} has the labels {listed}, name the harmful one")
    matches = [i for i, name in names.items() if name.lower() == label.lower()]
    if not matches:
        raise TbaError(f"task.classifier_label = {label!r} is none of the labels of {path!r}: {listed}")
    return matches[0]
