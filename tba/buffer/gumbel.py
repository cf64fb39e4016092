"""Sampling without replacement by Gumbel top-k, on log-probabilities, so that nothing can underflow.

Adding an independent Gumbel to every log-probability and taking the k largest sums, in order, is drawing k times
without replacement with the rest renormalised each time (Plackett-Luce). Pure functions of arrays and a generator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_TINY = float(np.finfo(np.float64).tiny)


def gumbels(shape: int | tuple[int, ...], rng: np.random.Generator) -> Floats:
    # The exponential may come out as zero (once in 2^53): its logarithm must stay finite.
    noise: Floats = -np.log(np.maximum(rng.standard_exponential(shape), _TINY))
    return noise


def mixture_log_p(rewards: Floats, uniform_fraction: float, inverse_temperature: float) -> Floats:
    """Logarithm of (1-u) softmax(inverse temperature x reward) + u / n, over the n rewards above minus infinity.

    Exponentials that vanish beside the uniform share are lost in it anyway; without one nothing is exponentiated.
    """
    can_be_drawn = rewards > -np.inf
    scaled = np.where(can_be_drawn, rewards * inverse_temperature if inverse_temperature else 0.0, -np.inf)
    log_softmax: Floats = scaled - log_sum_exp(scaled)
    if uniform_fraction == 0:
        return log_softmax
    uniform = can_be_drawn / can_be_drawn.sum()
    with np.errstate(divide="ignore"):
        mixed: Floats = np.log((1 - uniform_fraction) * np.exp(log_softmax) + uniform_fraction * uniform)
    return mixed


def log_sum_exp(values: Floats) -> float:
    """At least one of the values must be above minus infinity."""
    peak = values.max()
    return float(np.log(np.exp(values - peak).sum()) + peak)


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
