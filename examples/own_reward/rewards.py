"""Two reward functions: `f(texts, **columns) -> list[float | None]`.

`texts` are the responses as plain strings, for plain and for chat prompts alike. Every column of the data reaches a
function under its own name. None means that the function does not apply to a response.
"""

from typing import Any


def right_answer(texts: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last word is the answer of the row."""
    return [float(text.split()[-1:] == [truth]) for text, truth in zip(texts, answer, strict=True)]


def brevity(texts: list[str], **columns: Any) -> list[float | None]:
    """Shorter is better; an empty response gets no score."""
    return [1 / (1 + len(text) / 20) if text else None for text in texts]
