"""How much a set of texts differs: by embeddings, by shared word pairs, by near-duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

NEAR_DUPLICATE = 0.25
"""Two texts are near-duplicates if their edit distance in tokens is below this share of their joint length, as in
Lee et al.'s filter."""
NUM_RESAMPLES = 1000


def cosine_distance(unit_ND: NDArray[np.float64], weights_N: NDArray[np.float64] | None = None) -> float:
    """1 − mean cosine over all pairs of different rows; `weights_N` counts how often each row is there."""
    n = np.ones(len(unit_ND)) if weights_N is None else weights_N
    total = n @ unit_ND
    # The square of the sum holds every pair, each row with itself too. Copies of one row are no pair.
    pairs = n.sum() ** 2 - (n**2).sum()
    return float(1 - (total @ total - (n**2).sum()) / pairs) if pairs > 0 else float("nan")


def bootstrap(unit_ND: NDArray[np.float64], rng: np.random.Generator) -> tuple[float, float, float]:
    """Standard error and the bounds of the 95 % interval of the cosine distance, over texts drawn again."""
    N = len(unit_ND)
    counts = rng.multinomial(N, np.full(N, 1 / N), size=NUM_RESAMPLES)
    values = np.array([cosine_distance(unit_ND, row.astype(np.float64)) for row in counts])
    low, high = np.nanpercentile(values, [2.5, 97.5])
    return float(np.nanstd(values, ddof=1)), float(low), float(high)


def distinct_pairs(texts: Sequence[str]) -> float:
    """Distinct-2: the share of word pairs that are the first of their kind."""
    pairs = [pair for text in texts for words in [text.lower().split()] for pair in pairwise(words)]
    return len(set(pairs)) / len(pairs) if pairs else 0.0


def near_duplicates(rows: Sequence[Sequence[int]]) -> int:
    """How many of these have an earlier one that is nearly the same."""
    longest = max(map(len, rows), default=0)
    lengths_N = np.array([len(row) for row in rows])
    tokens_NL = np.full((len(rows), max(1, longest)), -1, dtype=np.int64)
    for place, row in enumerate(rows):
        tokens_NL[place, : len(row)] = row
    count = 0
    for i in range(1, len(rows)):
        distance = _edit_distances(tokens_NL[i, : lengths_N[i]], tokens_NL[:i], lengths_N[:i])
        joint = lengths_N[i] + lengths_N[:i]
        count += bool(((distance < NEAR_DUPLICATE * joint) | (joint == 0)).any())
    return count


def _edit_distances(
    one: NDArray[np.int64], others_NL: NDArray[np.int64], lengths_N: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Levenshtein's distance from one row to many, all at once."""
    N, L = others_NL.shape
    places = np.arange(L + 1)
    previous = np.broadcast_to(places, (N, L + 1)).copy()
    for i, token in enumerate(one, 1):
        current = np.empty_like(previous)
        current[:, 0] = i
        replaced = previous[:, :-1] + (others_NL != token)
        current[:, 1:] = np.minimum(replaced, previous[:, 1:] + 1)
        # Insertions run along the row: the best of (value − place) so far, plus the place.
        previous = np.minimum.accumulate(current - places, axis=1) + places
    return previous[np.arange(N), lengths_N]
