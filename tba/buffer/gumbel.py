"""Sampling without replacement by Gumbel top-k, on log-probabilities, so that nothing can underflow.

Adding an independent Gumbel to every log-probability and taking the k largest sums, in order, is drawing k times
without replacement with the rest renormalised each time (Plackett-Luce). `block_top_k` does the same for a long list
of which only a few blocks are looked at (Kool, van Hoof and Welling 2019). Pure functions of arrays and a generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_TINY = float(np.finfo(np.float64).tiny)


def gumbels(shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    # The exponential may come out as zero (once in 2^53): its logarithm must stay finite.
    noise: Floats = -np.log(np.maximum(rng.standard_exponential(shape), _TINY))
    return noise


def log_sum_exp(values: Floats) -> Floats:
    """Along the last axis; minus infinity where every value is."""
    peak = values.max(axis=-1, keepdims=True)
    peak[np.isneginf(peak)] = 0.0
    with np.errstate(divide="ignore"):
        total: Floats = np.log(np.exp(values - peak).sum(axis=-1)) + peak[..., 0]
    return total


def log_mixture(log_softmax: Floats, uniform: Floats | float, uniform_fraction: float) -> Floats:
    """Logarithm of (1 - u) exp(log_softmax) + u uniform.

    Exponentials that vanish beside the uniform share are lost in it anyway; without one nothing is exponentiated.
    """
    if uniform_fraction == 0:
        return log_softmax
    with np.errstate(divide="ignore"):
        mixed: Floats = np.log((1 - uniform_fraction) * np.exp(log_softmax) + uniform_fraction * uniform)
    return mixed


def top_k(keys: Floats, k: int) -> Indices:
    """Indices of the k largest keys (all, if there are fewer), largest first."""
    if k < len(keys):
        chosen = np.argpartition(keys, len(keys) - k)[-k:]
    else:
        chosen = np.arange(len(keys))
    return chosen[np.argsort(-keys[chosen])]


def gumbel_top_k(log_p: Floats, k: int, rng: np.random.Generator) -> Indices:
    """k indices without replacement by the given (possibly unnormalised) log-probabilities, in order of drawing."""
    return top_k(log_p + gumbels(len(log_p), rng), k)


def gumbel_max(log_p: Floats, k: int, rng: np.random.Generator) -> Indices:
    """k independent draws: with replacement. Meant for short lists, as it holds k times their length."""
    chosen: Indices = np.argmax(log_p + gumbels((k, len(log_p)), rng), axis=1)
    return chosen


def conditional_gumbels(log_p: Floats, maxima: Floats, rng: np.random.Generator) -> Floats:
    """Gumbels located at `log_p`, given that the largest of each row is that row's entry of `maxima`.

    Kool et al. 2019, appendix B.3, in their stable form of -log(exp(-max) - exp(-largest) + exp(-free)). Entries of
    probability zero stay at minus infinity; each row needs one that is not.
    """
    free = log_p + gumbels(log_p.shape, rng)
    largest = free.max(axis=1, keepdims=True)
    maxima = maxima[:, None]
    with np.errstate(divide="ignore"):
        v = maxima - free + np.log(-np.expm1(free - largest))
    shifted: Floats = maxima - np.maximum(v, 0.0) - np.log1p(np.exp(-np.abs(v)))
    return shifted


def block_top_k(
    log_mass: Floats, log_p_of: Callable[[Indices], Floats], k: int, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """`gumbel_top_k` over equally long blocks: (block, place within it) of the k entries drawn, in order of drawing.

    `log_mass` is the log-probability of each block as a whole; `log_p_of(blocks)` gives one row of entries for each
    block asked for. The largest Gumbel of a block is itself a Gumbel at the block's mass, and an entry among the k
    largest sits in one of the k blocks with the largest maxima: only those are filled in, given their maxima.
    """
    maxima = log_mass + gumbels(len(log_mass), rng)
    blocks = top_k(maxima, k)
    blocks = blocks[maxima[blocks] > -np.inf]
    keys = conditional_gumbels(log_p_of(blocks), maxima[blocks], rng)
    row, place = np.divmod(top_k(keys.ravel(), k), keys.shape[1])
    return blocks[row], place
