"""The random numbers of an engine: uniform, independent, and a function of request, response and token alone."""

from __future__ import annotations

import numpy as np
from buffer_cases import assert_frequencies

from tba.engines.numbers import response_keys, uniform


def split_mix_64(state: int) -> int:
    """As published, in whole numbers of Python."""
    mask = 2**64 - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return bits ^ (bits >> 31)


def test_numbers_are_those_of_the_published_generator() -> None:
    assert split_mix_64(0) == 0xE220A8397B1DCDAF  # the first of the reference implementation started at 0
    keys = response_keys([3, 4], 5)
    for t in (0, 1, 1000):
        expected = [
            (split_mix_64((int(key) + t * 0x9E3779B97F4A7C15) & (2**64 - 1)) >> 40) / 2**24 for key in keys.tolist()
        ]
        assert uniform(keys, np.full(5, t)).tolist() == expected


def test_the_largest_number_is_below_one() -> None:
    numbers = uniform(response_keys([0], 1000), np.arange(1000))
    assert numbers.dtype == np.float32
    assert 0 <= numbers.min() < numbers.max() < 1
    assert np.float32(2**24 - 1) * np.float32(2.0**-24) < 1


def test_every_request_and_response_has_numbers_of_its_own() -> None:
    keys = np.concatenate([response_keys([seed, request], 16) for seed in range(8) for request in range(64)])
    assert len(np.unique(keys)) == len(keys)
    assert response_keys([1, 2], 16)[:4].tolist() == response_keys([1, 2], 4).tolist()


def test_numbers_are_uniform_across_responses_and_tokens_and_do_not_follow_their_neighbours() -> None:
    keys = np.concatenate([response_keys([7, request], 16) for request in range(64)])
    numbers = np.stack([uniform(keys, np.full(len(keys), t)) for t in range(64)], axis=1)
    bins = (numbers * 4).astype(np.int64)
    even = dict.fromkeys(range(4), 0.25)
    assert_frequencies(dict(enumerate(np.bincount(bins.ravel()).tolist())), even)
    # Pairs of neighbours, along a response and across responses, fill the square evenly.
    for first, second in ((bins[:, :-1], bins[:, 1:]), (bins[:-1], bins[1:])):
        counts = np.bincount((4 * first + second).ravel(), minlength=16)
        assert_frequencies(dict(enumerate(counts.tolist())), dict.fromkeys(range(16), 1 / 16))
