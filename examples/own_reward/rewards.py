"""Reward functions of one's own, in TRL's signature: `f(completions, **columns) -> list[float | None]`.

Every column of the data reaches a function by its name. None means "does not apply to this one".
"""

from typing import Any


def right_answer(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    """1 where the last word is the answer of the row."""
    return [float(text.split()[-1:] == [truth]) for text, truth in zip(completions, answer, strict=True)]


def brevity(completions: list[str], **columns: Any) -> list[float | None]:
    """Shorter is better; nothing is said of an empty completion."""
    return [1 / (1 + len(text) / 20) if text else None for text in completions]
