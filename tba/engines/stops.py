"""What ends a response before the length limit: certain tokens, and texts, also those that several tokens spell.

A response ends with the first token after which its text has one of the texts in it. The text stays in the response,
with whatever else its last token holds: what was sampled is what is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.engines.branches import Ints
from tba.types import Tokens

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What tokens that hold a part of a character decode to."""


class Stops:
    """Knows of every token whether it ends a response, or whether it may be the last one of a text that does."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._texts = tuple(texts)
        # As many as there are logits, which may be more than the tokenizer knows or the configuration says.
        num_tokens = len(model.get_output_embeddings().weight)
        ends, may_end = stop_tokens(model, tokenizer, texts), tokens_that_may_end(tokenizer, texts)
        self._ends_V, self._may_end_V = (_marked(tokens, num_tokens) for tokens in (ends, may_end - ends))

    def ended(self, token_A: Ints, tokens_of: Callable[[int], Tokens]) -> NDArray[np.bool_]:
        """For each response, whether the token that it drew last ends it. `tokens_of` gives all tokens of a response,
        by its place. Few tokens are the end of a text, so few responses are decoded."""
        ended_A = self._ends_V[token_A]
        for place in np.flatnonzero(self._may_end_V[token_A]).tolist():
            tokens = tokens_of(place).tolist()
            # As rewards see it, and with special tokens, which may be a part of a text that is named.
            texts = [str(self._tokenizer.decode(tokens, skip_special_tokens=skip)) for skip in (True, False)]
            ended_A[place] = any(stop in text for stop in self._texts for text in texts)
        return ended_A


def stop_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] = ()) -> set[int]:
    """Every token that ends a response by itself: the tokenizer's, those of the generation config, and those that have
    one of these texts in them."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    listed = configured if isinstance(configured, Iterable) else [configured]
    found = {int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None}
    if texts:
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
        found |= {token for token, piece in enumerate(pieces) if any(text in piece for text in texts)}
    return found


def tokens_that_may_end(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> set[int]:
    """Tokens with which a text can be complete that others began: they begin with an end of it."""
    if not texts:
        return set()
    endings = {text[i:] for text in texts for i in range(len(text))}
    has_wide = any(not text.isascii() for text in texts)
    return {
        token
        for token, piece in enumerate(_pieces(tokenizer))
        if any(piece[:i] in endings for i in range(1, len(piece) + 1)) or (has_wide and UNFINISHED in piece)
    }


def _pieces(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """What each token adds to a text. Some tokenizers drop the space that a token begins with at the start of a text,
    so a letter stands before it."""
    before = list(tokenizer("a", add_special_tokens=False).input_ids)
    lead = str(tokenizer.decode(before))
    texts = tokenizer.batch_decode([[*before, token] for token in range(len(tokenizer))])
    return [text.removeprefix(lead) for text in texts]


def _marked(tokens: Iterable[int], num_tokens: int) -> NDArray[np.bool_]:
    marked = np.zeros(num_tokens, dtype=bool)
    marked[[token for token in tokens if token < num_tokens]] = True
    return marked
