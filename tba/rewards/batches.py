"""Models that judge texts read them in batches of similar length, so that little is padded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

Text = TypeVar("Text")
Verdict = TypeVar("Verdict")


def judged_in_batches(
    texts: Sequence[Text],
    judge: Callable[[list[Text]], Iterable[Verdict]],
    *,
    length: Callable[[Text], int],
    batch_size: int,
) -> list[Verdict]:
    """What `judge` makes of each text, in the order of the texts. It is given batches, the shortest texts first."""
    order = sorted(range(len(texts)), key=lambda i: length(texts[i]))
    found: dict[int, Verdict] = {}
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        found.update(zip(part, judge([texts[i] for i in part]), strict=True))
    return [found[i] for i in range(len(texts))]
