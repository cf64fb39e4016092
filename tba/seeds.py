"""Where all randomness of a run comes from: its seed, and what the random numbers are for.

Every use has a purpose of its own, so no two uses share a stream, whatever the seed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What random numbers are for. The value is part of every stream, so a new purpose gets a new value."""

    DRAWS = 1
    """Which groups the Trainer draws from the buffer."""
    PROMPT_ORDER = 2
    """The order of a Searcher's prompts in one epoch."""
    EXPLORATION = 3
    """The sampling temperatures of a Searcher."""
    RESPONSES = 4
    """The tokens a Searcher samples."""
    EVALUATED_RESPONSES = 5
    """The tokens sampled by an evaluation without a run."""
    ADAPTERS = 6
    """The first values of LoRA adapters."""
    RESAMPLING = 7
    """The bootstrap of an evaluation's confidence interval."""
    SWEEP_ARMS = 8
    """The combinations of settings that a random sweep tries."""
    CHOSEN_PROMPTS = 9
    """Which prompts a Searcher chooses by what came of them."""


def generator(purpose: Purpose, seed: int, *numbers: int) -> np.random.Generator:
    """A new generator. Any difference in purpose, seed or numbers makes another stream, trailing zeros too.

    `numbers` tell the uses of one purpose apart, such as Searchers and epochs; each is below 2³².
    """
    return np.random.default_rng(_sequence(purpose, seed, numbers))


def integer(purpose: Purpose, seed: int, *numbers: int) -> int:
    """The same as one seed of 63 bits, for libraries that take a number."""
    return int(_sequence(purpose, seed, numbers).generate_state(1, np.uint64)[0] >> 1)


def _sequence(purpose: Purpose, seed: int, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    if any(not 0 <= number < 2**32 for number in numbers):
        raise ValueError(f"numbers that tell random streams apart must be from 0 to 2**32 - 1: {numbers}")
    # NumPy joins seed and key to one list of 32-bit words. A list of plain numbers would be padded with zeros, which
    # makes [1, 2] and [1, 2, 0] equal; a key is not. Its length at the end tells where a long seed stops.
    return np.random.SeedSequence(seed, spawn_key=(purpose, *numbers, len(numbers)))
