"""The reward of the recorded runs."""

from __future__ import annotations

from typing import Any


def digits(texts: list[str], **columns: Any) -> list[float]:
    """The share of digits in each response: a tiny model without any knowledge can learn it."""
    return [sum(c.isdigit() for c in text) / 8 for text in texts]
