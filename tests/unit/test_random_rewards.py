"""Rewards that give equal responses different numbers: what draws by reward make of them, and what is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from buffer_cases import evict_before, group, rewarded, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_cases import trainer_in

from tba.buffer.gumbel import mixture_log_p
from tba.buffer.prompt_list import PromptTrajectories
from tba.buffer.replay import ReplayBuffer
from tba.config.settings import BufferConfig
from tba.learn.noise import NoiseWatch
from tba.testing import save_tiny_model
from tba.types import Group


def listed(scores: Sequence[tuple[int, float]]) -> PromptTrajectories:
    """The buffer's list of a prompt, with responses by number and their rewards."""
    buffer = ReplayBuffer(10_000, 10_000)
    buffer.extend([scored(scores)])
    return buffer._records["a"]


def scored(scores: Sequence[tuple[int, float]], version: int = 0) -> Group:
    return group("a", [trajectory(reward, version, (5, number)) for number, reward in scores])


def expected_reward(p: np.ndarray, scores: Sequence[tuple[int, float]], number: int) -> float:
    """Of what is drawn by these probabilities, given that it is this response."""
    own = np.array([n == number for n, _ in scores])
    rewards = np.array([reward for _, reward in scores])
    return float((p[own] * rewards[own]).sum() / p[own].sum())


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("inverse_temperature", [0.5, 1.0, 4.0])
def test_lucky_scores_are_not_drawn_more_often(spread: float, inverse_temperature: float) -> None:
    """Two responses of true rewards 1 and 0, the second scored r ± s, equally often. By each score alone, what is
    drawn of it averages s·tanh(s) too high; by the mean it averages the truth."""
    scores = [(0, 1.0)] * 4 + [(1, spread), (1, -spread)] * 2
    law = (0.0, inverse_temperature)
    alone = np.exp(mixture_log_p(np.array([reward for _, reward in scores]), *law))
    excess = spread * math.tanh(inverse_temperature * spread)
    assert expected_reward(alone, scores, 1) == pytest.approx(excess, rel=1e-12)
    ours = np.exp(listed(scores).log_p(*law))
    assert expected_reward(ours, scores, 1) == pytest.approx(0.0, abs=1e-12)
    assert expected_reward(ours, scores, 0) == pytest.approx(1.0, rel=1e-12)
    share = ours[4:].sum()
    assert share == pytest.approx(1 / (1 + math.exp(inverse_temperature)), rel=1e-12), "as without the noise"
    assert alone[4:].sum() > share, "by each score alone, the noisy one is drawn more often than it deserves"


@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5)), min_size=1, max_size=40),
    st.floats(0, 1),
    st.floats(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_copies_are_equally_likely_and_weigh_as_their_mean(
    scores: list[tuple[int, float]], u: float, inverse_temperature: float
) -> None:
    log_p = listed(scores).log_p(u, inverse_temperature)
    means = np.array([np.mean([r for n, r in scores if n == number]) for number, _ in scores])
    assert log_p == pytest.approx(mixture_log_p(means, u, inverse_temperature), abs=1e-9)
    for number in {n for n, _ in scores}:
        own = [log_p[i] for i, (n, _) in enumerate(scores) if n == number]
        assert len(set(own)) == 1, "to the bit"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
@settings(max_examples=30, deadline=None)
def test_equal_rewards_of_equal_responses_change_nothing_to_the_bit(numbers: list[int]) -> None:
    rewards = np.array([1 / (number + 3) for number in numbers])
    record = listed([(number, 1 / (number + 3)) for number in numbers])
    assert np.array_equal(record.tilts(), rewards)
    assert np.array_equal(record.log_p(0.3, 1.7), mixture_log_p(rewards, 0.3, 1.7))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.1, 0.3, 0.7])), min_size=4, max_size=24), st.data())
@settings(max_examples=60, deadline=None)
def test_the_law_follows_from_what_is_there_alone(scores: list[tuple[int, float]], data: st.DataObject) -> None:
    """Whether stale ones left as the others came, or at the end, as in a buffer that is rebuilt from the log: to the
    bit. What has left counts no more."""
    stale = data.draw(st.integers(1, len(scores) - 1))
    one, other = ReplayBuffer(1_000, 1_000), ReplayBuffer(1_000, 1_000)
    for buffer in (one, other):
        buffer.extend([scored(scores[:stale], version=0)])
        if buffer is one:
            evict_before(buffer, 1)
        buffer.extend([scored(scores[stale:], version=1)])
        evict_before(buffer, 1)
    ours, theirs = (buffer._records["a"].tilts()[-len(scores) + stale :] for buffer in (one, other))
    assert np.array_equal(ours, theirs)
    left = scores[stale:]
    means = [np.mean([r for n, r in left if n == number]) for number, _ in left]
    assert ours == pytest.approx(np.array(means), abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# What is told
# ---------------------------------------------------------------------------------------------------------------------


def test_what_is_told_and_when() -> None:
    assert NoiseWatch(tilt=0.0, declared=True).message(9.0) is None, "draws do not go by reward"
    assert NoiseWatch(tilt=1.0, declared=False).message(0.0) is None
    assert NoiseWatch(tilt=1.0, declared=False).message(1e-6) is None, "rounding of a reward model"
    declared = NoiseWatch(tilt=1.0, declared=True)
    assert "the reward is random" in (declared.message(0.0) or "")
    assert declared.message(1.0) is None, "once"
    seen = NoiseWatch(tilt=2.0, declared=False)
    assert "differ by 0.5, and" in (message := seen.message(0.5) or "")
    assert "buffer.uniform_fraction = 1" in message


@pytest.mark.parametrize(
    ("buffer", "tilt"),
    [
        ({}, 1.0),
        ({"inverse_temperature": 3.0}, 3.0),
        ({"inverse_temperature": 0.0}, 0.0),
        ({"uniform_fraction": 1.0}, 0.0),
        ({"recent_fraction": 1.0}, 0.0),
    ],
)
def test_by_how_much_rewards_tilt_draws(buffer: dict[str, float], tilt: float) -> None:
    assert BufferConfig(**buffer).tilt == tilt


def test_the_buffer_measures_the_difference() -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", [0.1, 0.9, 0.9]), scored([(1, 0.2), (2, 0.9)])])
    assert buffer.reward_noise == 0
    buffer.extend([scored([(1, 0.5), (2, 0.9)])])
    assert buffer.reward_noise == pytest.approx(0.3)


def test_a_run_tells_of_it_once(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path / "run", str(save_tiny_model(tmp_path / "model")))
    for serial, reward in enumerate([0.0, 0.0, 1.0, 0.0, 1.0], start=1):
        same = scored([(7, reward), (8, 0.0)])
        trainer.groups.send(Group(same.prompt, same.trajectories, "searcher-0", serial))
        trainer.merge()
        trainer.groups.receive()
    lines = (tmp_path / "run" / "metrics.jsonl").read_text("utf-8")
    assert lines.count("random_rewards") == 1
