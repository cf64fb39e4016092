"""Small trajectories and groups for the tests of the buffer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations

import numpy as np

from tba.buffer.replay import ReplayBuffer
from tba.types import Group, Prompt, Response, Steps, Trajectory, Version


def trajectory(reward: float = 0.0, version: Version | int = 0, tokens: Sequence[int] = (1, 2)) -> Trajectory:
    logprobs = np.full(len(tokens), -0.5, np.float32)
    response = Response(np.array(tokens, np.int32), logprobs, ((Version.read(version), len(tokens)),), "text", True)
    return Trajectory(response, reward, (reward,), logprobs)


def group(prompt_id: str, trajectories: Iterable[Trajectory], source: str = "searcher", serial: int = 0) -> Group:
    return Group(Prompt(prompt_id, f"text of {prompt_id}", (1, 2, 3)), tuple(trajectories), source, serial)


def rewarded(prompt_id: str, rewards: Iterable[float], version: Version | int = 0) -> Group:
    """Trajectories with these rewards; equal rewards have equal responses, and different ones have different."""
    return group(prompt_id, [trajectory(r, version, np.array([r]).view(np.int32).tolist()) for r in rewards])


def evict_before(buffer: ReplayBuffer, step: int) -> int:
    """Let what is older than this step of epoch 0 go, and nothing else."""
    return buffer.evict_outside({0: Steps(step, None)})


def plackett_luce(p: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """The probability of every ordered draw of k without replacement, by enumeration."""
    exact = {}
    for order in permutations(range(len(p)), k):
        left, probability = 1.0, 1.0
        for index in order:
            probability *= p[index] / left
            left -= p[index]
        exact[order] = probability
    return exact


def assert_frequencies(counts: dict[object, int], exact: dict[object, float]) -> None:
    """Counts fit the exact probabilities: nothing impossible came, no count is 5 sigma off, nor is chi-square."""
    num = sum(counts.values())
    assert set(counts) <= {key for key, p in exact.items() if p > 0}
    assert abs(sum(exact.values()) - 1) < 1e-9
    chi_square = 0.0
    for key, p in exact.items():
        deviation = counts.get(key, 0) - num * p
        assert abs(deviation) <= 5 * np.sqrt(num * p * (1 - p)) + 1e-9, (key, counts.get(key, 0), num * p)
        chi_square += deviation**2 / (num * p) if p > 0 else 0.0
    freedom = len(exact) - 1
    assert chi_square <= freedom + 5 * np.sqrt(2 * freedom) + 1e-9
