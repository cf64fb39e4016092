"""The random numbers that decide what is sampled: a function of the request, the response and the token, nothing else.

What an engine samples for a request so does not depend on what else is under way, on when a response began, or on who
shares a slot. A response has a key; its t-th number is the t-th of SplitMix64 (Steele, Lea, Flood: Fast Splittable
Pseudorandom Number Generators, 2014) started at this key, and can be computed without those before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Numbers = NDArray[np.float32]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def response_keys(seed: Sequence[int], num_responses: int) -> Keys:
    """A key for each response to a request; `seed` is what tells this request from every other."""
    keys: Keys = np.random.SeedSequence(seed).generate_state(num_responses, np.uint64).astype(np.uint64)
    return keys


def uniform(key_A: Keys, token_A: NDArray[np.int64]) -> Numbers:
    """Numbers of [0, 1): for each response the one that decides its token at this place, counted from 0."""
    bits = key_A + (token_A.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * _MIX_1
    bits = (bits ^ (bits >> np.uint64(27))) * _MIX_2
    bits ^= bits >> np.uint64(31)
    # As many bits as float32 has, so that none is rounded up to 1.
    numbers: Numbers = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return numbers
