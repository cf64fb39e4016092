"""Which generated problems are held out: a check digit of the problem's own numbers decides, and not a seed.

So no held-out problem is in reach of any training set, whatever its seed and size.
"""

from __future__ import annotations

from collections.abc import Iterable

CHECK_MODULUS = 9


def is_held_out(numbers: Iterable[int]) -> bool:
    """True for about a ninth of all sequences. The weights, which are powers of two, differ from those of a sum, so
    this says nothing of the sum of the numbers."""
    return sum(number << place for place, number in enumerate(numbers)) % CHECK_MODULUS == 0
