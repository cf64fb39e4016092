from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from buffer_cases import assert_frequencies, evict_before, group, plackett_luce, rewarded, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.buffer import sampling
from tba.buffer.gumbel import gumbel_top_k, mixture_log_p
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.types import Group

NUM_DRAWS = 8_000


@pytest.fixture(autouse=True, scope="module")
def lists_of_nine_are_long() -> Iterator[None]:
    """So that small cases reach both ways of drawing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "LONG_LIST", 8)
        yield


def draws(buffer: ReplayBuffer, rng: np.random.Generator | None = None, **settings: Any) -> list[Group]:
    defaults = {"num_groups": 8, "group_size": 2, "recent_fraction": 0.0, "uniform_fraction": 0.5}
    rng = rng or np.random.default_rng(0)
    return draw(buffer, rng=rng, **{**defaults, "inverse_temperature": 1.0, **settings}).groups


def mixture(rewards: list[float], u: float, inverse_temperature: float = 1.0) -> list[float]:
    weights = np.exp(inverse_temperature * np.array(rewards))
    p = (1 - u) * weights / weights.sum() + u / len(rewards)
    return [float(x) for x in p]


def order_counts(groups: list[Group], rewards: list[float]) -> Counter[Any]:
    """How often each ordered draw came, by the (distinct) rewards."""
    return Counter(tuple(rewards.index(t.reward) for t in g.trajectories) for g in groups)


# The mathematics.


def test_gumbel_top_k_is_plackett_luce() -> None:
    p = [0.5, 0.3, 0.15, 0.05]
    rng = np.random.default_rng(1)
    counts = Counter(tuple(gumbel_top_k(np.log(p), 3, rng).tolist()) for _ in range(NUM_DRAWS))
    assert_frequencies(counts, plackett_luce(p, 3))


@pytest.mark.parametrize("u", [0.0, 0.4, 1.0])
def test_the_mixture_is_the_formula(u: float) -> None:
    rewards = [0.0, 1.0, 2.0, -1.0]
    np.testing.assert_allclose(np.exp(mixture_log_p(np.array(rewards), u, 1.5)), mixture(rewards, u, 1.5))
    with_vacated = np.array([-np.inf, *rewards, -np.inf])
    np.testing.assert_allclose(np.exp(mixture_log_p(with_vacated, u, 1.5)), [0, *mixture(rewards, u, 1.5), 0])


# The whole branch.


@pytest.mark.parametrize("inverse_temperature", [0.0, 1.5])
@pytest.mark.parametrize("u", [0.0, 0.4, 1.0])
def test_responses_follow_the_mixture(u: float, inverse_temperature: float) -> None:
    rewards = [0.0, 1.0, 2.0, -1.0]
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", rewards)])
    groups = draws(buffer, num_groups=NUM_DRAWS, uniform_fraction=u, inverse_temperature=inverse_temperature)
    exact = plackett_luce(mixture(rewards, u, inverse_temperature), 2)
    assert_frequencies(order_counts(groups, rewards), exact)


@pytest.mark.parametrize("max_rounds", [0, 1, 4], ids=["by Gumbel top-k", "mixed", "by cumulative sums"])
@pytest.mark.parametrize("u", [0.0, 0.4, 1.0])
def test_responses_of_a_long_list_follow_the_mixture(
    u: float, max_rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with vacated places at the beginning, within and at the end."""
    monkeypatch.setattr(sampling, "MAX_ROUNDS", max_rounds)
    kept = [0.0, 1.0, 2.0, -1.0, 0.5, 1.5, 0.2, -0.3, 0.7]
    versions = {-0.01: 0, -0.02: 0, -0.03: 0, -0.04: 0, -0.05: 0}
    arriving = [9.0, -0.05, *kept[:3], -0.01, kept[3], -0.02, -0.03, *kept[4:], -0.04]
    buffer = ReplayBuffer(100, len(arriving) - 1)
    arrived = [trajectory(reward, versions.get(reward, 1), (1, n)) for n, reward in enumerate(arriving)]
    buffer.extend([group("a", arrived)])
    evict_before(buffer, 1)
    groups = draws(buffer, num_groups=NUM_DRAWS, uniform_fraction=u)
    assert buffer._records["a"]._cumulative, "the list counts as long"
    assert_frequencies(order_counts(groups, kept), plackett_luce(mixture(kept, u), 2))


def test_no_draw_falls_on_the_end_of_the_sums() -> None:
    """A random number just below 1 times the sum may be rounded up to the sum."""
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", [0.1 * i for i in range(20)])])

    class Largest:
        def __init__(self) -> None:
            self.rng = np.random.default_rng(0)
            self.num_asked = 0

        def random(self, count: int) -> Any:
            self.num_asked += 1
            return np.full(count, np.nextafter(1.0, 0.0)) if self.num_asked < 4 else self.rng.random(count)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.rng, name)

    places = sampling._draw_from_long_list(buffer._records["a"], 3, 0.5, 1.0, Largest())  # type: ignore[arg-type]
    assert len(set(places.tolist())) == 3
    assert places.max() < 20


def test_cumulative_sums_follow_changes_and_settings() -> None:
    """A list drawn from before every change gives the law of the list as it is, not as it was."""
    rewards = [0.1 * i for i in range(9)]
    buffer = ReplayBuffer(100, 9)
    for reward in [5.0, 6.0, 7.0, *rewards]:
        buffer.extend([rewarded("a", [reward])])
        draws(buffer, inverse_temperature=3.0, uniform_fraction=0.0)
        draws(buffer, inverse_temperature=1.0, uniform_fraction=1.0)
    groups = draws(buffer, num_groups=NUM_DRAWS, uniform_fraction=0.3)
    assert_frequencies(order_counts(groups, rewards), plackett_luce(mixture(rewards, 0.3), 2))


@pytest.mark.parametrize("num", [20, 200])
@pytest.mark.parametrize("inverse_temperature", [1.0, 100.0])
def test_draws_with_extreme_rewards_do_not_underflow(num: int, inverse_temperature: float) -> None:
    rewards = np.random.default_rng(0).permutation(np.linspace(-1e6, 0, num)).tolist()
    buffer = ReplayBuffer(1_000, 1_000)
    buffer.extend([rewarded("a", rewards)])
    with np.errstate(invalid="raise", over="raise"):
        for drawn in draws(buffer, group_size=16, uniform_fraction=0.0, inverse_temperature=inverse_temperature):
            assert [t.reward for t in drawn.trajectories] == sorted(rewards)[:-17:-1]
        for drawn in draws(buffer, group_size=16, uniform_fraction=0.5, inverse_temperature=inverse_temperature):
            assert len({t.reward for t in drawn.trajectories}) == 16


def test_fewer_than_k_are_drawn_with_replacement() -> None:
    rewards = [0.0, 1.0]
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", rewards)])
    groups = draws(buffer, num_groups=NUM_DRAWS, group_size=3, uniform_fraction=0.2)
    p = mixture(rewards, 0.2)
    exact = {(a, b, c): p[a] * p[b] * p[c] for a in (0, 1) for b in (0, 1) for c in (0, 1)}
    assert_frequencies(order_counts(groups, rewards), exact)


def test_one_trajectory_fills_a_group() -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", [3.0])])
    for m in (0.0, 1.0):
        assert all(len(g.trajectories) == 16 for g in draws(buffer, group_size=16, recent_fraction=m))


def test_prompts_are_uniform_whatever_their_size_and_history() -> None:
    buffer = ReplayBuffer(100, 10)
    buffer.extend([rewarded("gone", [0.0], version=0)])
    buffer.extend([rewarded("a", range(10), version=1), rewarded("b", [5.0], version=2), rewarded("c", [1, 2])])
    evict_before(buffer, 1)
    counts = Counter(g.prompt.id for g in draws(buffer, num_groups=NUM_DRAWS))
    assert_frequencies(counts, {"a": 1 / 2, "b": 1 / 2})


# The recent branch.


@pytest.mark.parametrize("m", [0.0, 0.3, 1.0])
def test_branches_are_taken_in_proportion(m: float) -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("old", [1, 2])])
    buffer.extend([rewarded("new", [3, 4])])
    counts = Counter(g.prompt.id for g in draws(buffer, num_groups=NUM_DRAWS, recent_fraction=m))
    assert_frequencies(counts, {"old": (1 - m) / 2, "new": m + (1 - m) / 2})


def test_recent_responses_are_uniform_and_of_the_latest_merge() -> None:
    buffer = ReplayBuffer(100, 5)
    buffer.extend([rewarded("a", [7.0, 8.0, 9.0])])
    buffer.extend([rewarded("a", [0.0, 1.0]), rewarded("a", [2.0, 5.0])])
    buffer.extend([])
    groups = draws(buffer, num_groups=NUM_DRAWS, recent_fraction=1.0, uniform_fraction=0.0)
    exact = {frozenset(pair): 1 / 6 for pair in [(0, 1), (0, 2), (0, 5), (1, 2), (1, 5), (2, 5)]}
    assert_frequencies(Counter(frozenset(t.reward for t in g.trajectories) for g in groups), exact)


def test_a_merge_larger_than_the_prompts_capacity_is_recent_as_far_as_it_is_left() -> None:
    buffer = ReplayBuffer(100, 3)
    buffer.extend([rewarded("a", range(10))])
    drawn = draws(buffer, num_groups=100, recent_fraction=1.0)
    assert {t.reward for g in drawn for t in g.trajectories} == {7, 8, 9}


def test_recent_prompts_come_in_shuffled_rounds() -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("old", [0.0])])
    buffer.extend([rewarded(name, [1.0, 2.0]) for name in "abcab"])
    rng = np.random.default_rng(0)
    names = [g.prompt.id for g in draws(buffer, rng, num_groups=6_000, recent_fraction=1.0)]
    rounds = Counter(tuple(names[i : i + 3]) for i in range(0, len(names), 3))
    assert_frequencies(rounds, dict.fromkeys(permutations("abc"), 1 / 6))


def test_a_merge_starts_a_new_round_and_an_empty_one_does_not() -> None:
    buffer = ReplayBuffer(100, 100)
    rng = np.random.default_rng(0)
    buffer.extend([rewarded(name, [1.0]) for name in "abcd"])
    first = draws(buffer, rng, num_groups=2, recent_fraction=1.0)
    buffer.extend([])
    rest = draws(buffer, rng, num_groups=2, recent_fraction=1.0)
    assert {g.prompt.id for g in first + rest} == set("abcd")
    for _ in range(10):
        draws(buffer, rng, num_groups=1, recent_fraction=1.0)
        buffer.extend([rewarded(name, [2.0]) for name in "abcd"])
        assert {g.prompt.id for g in draws(buffer, rng, num_groups=4, recent_fraction=1.0)} == set("abcd")


def test_a_small_merge_does_not_fill_a_step_alone() -> None:
    buffer = ReplayBuffer(100, 100, recent_groups=4)
    buffer.extend([rewarded(name, [0.0]) for name in "xyz"])
    for names in ("ab", "c", "d"):
        buffer.extend([rewarded(name, [1.0]) for name in names])
    drawn = draws(buffer, num_groups=4, recent_fraction=1.0)
    assert {g.prompt.id for g in drawn} == set("abcd")


def test_recent_are_as_few_merges_as_hold_a_steps_worth() -> None:
    buffer = ReplayBuffer(100, 100, recent_groups=4)
    buffer.extend([rewarded(name, [0.0]) for name in "ab"])
    buffer.extend([rewarded(name, [1.0]) for name in "cdefg"])
    assert {g.prompt.id for g in draws(buffer, num_groups=50, recent_fraction=1.0)} == set("cdefg")
    buffer.extend([rewarded("a", [2.0])])
    drawn = draws(buffer, num_groups=50, group_size=1, recent_fraction=1.0)
    assert {g.prompt.id for g in drawn} == set("acdefg")
    assert {t.reward for g in drawn for t in g.trajectories} == {1.0, 2.0}


def test_without_recent_ones_the_whole_buffer_serves() -> None:
    buffer = ReplayBuffer(100, 100)
    buffer.extend([rewarded("a", [1.0], version=5)])
    buffer.extend([rewarded("b", [2.0], version=1), rewarded("c", [2.0], version=5)])
    evict_before(buffer, 2)
    assert {g.prompt.id for g in draws(buffer, recent_fraction=1.0)} == {"c"}
    buffer.extend([rewarded("b", [2.0], version=1)])
    assert {g.prompt.id for g in draws(buffer, num_groups=50, recent_fraction=1.0)} == {"a", "c"}


def test_an_empty_buffer_cannot_be_drawn_from() -> None:
    buffer = ReplayBuffer(100, 100)
    with pytest.raises(ValueError, match="empty"):
        draws(buffer)
    buffer.extend([rewarded("a", [1.0])])
    evict_before(buffer, 1)
    with pytest.raises(ValueError, match="empty"):
        draws(buffer, recent_fraction=1.0)


# Repeating draws after a restart.

MERGES = st.lists(
    st.tuples(st.sampled_from("abcde"), st.lists(st.integers(0, 9), min_size=1, max_size=9)), min_size=1, max_size=4
)
STEPS = st.lists(st.one_of(MERGES, st.integers(0, 9), st.just("draw")), min_size=1, max_size=25)


class Session:
    """A buffer, the merges it was given and a generator, driven by one step after the other."""

    def __init__(self) -> None:
        self.buffer = ReplayBuffer(60, 20)
        self.rng = np.random.default_rng(7)
        self.merges: list[list[Group]] = []

    def take(self, step: Any) -> list[list[int]]:
        """Identities of what was drawn, if anything was."""
        if isinstance(step, int):
            evict_before(self.buffer, step)
        elif step == "draw" and len(self.buffer):
            groups = draws(self.buffer, self.rng, recent_fraction=0.5, inverse_temperature=0.7)
            return [[id(t) for t in g.trajectories] for g in groups]
        elif step != "draw":
            self.merges.append([group(name, [trajectory(v / 3, v) for v in versions]) for name, versions in step])
            self.buffer.extend(self.merges[-1])
        return []

    def restarted(self) -> Session:
        other = Session()
        for merge in self.merges:
            other.buffer.extend(merge)
        other.buffer.restore_draw_state(json.loads(json.dumps(self.buffer.draw_state())))
        other.rng.bit_generator.state = self.rng.bit_generator.state
        return other


@settings(max_examples=100, deadline=None)
@given(before=STEPS, after=STEPS)
def test_a_rebuilt_buffer_draws_what_the_first_would_have(before: list[Any], after: list[Any]) -> None:
    session = Session()
    for step in before:
        session.take(step)
    other = session.restarted()
    counters = ("num_added", "num_evicted", "num_evicted_stale", "num_duplicates", "num_prompts")
    for step in ["draw", *after, "draw"]:
        if step == "draw" or isinstance(step, int):
            assert session.take(step) == other.take(step)
        else:
            session.take(step)
            other.buffer.extend(session.merges[-1])
        for counter in counters:
            assert getattr(session.buffer, counter) == getattr(other.buffer, counter)
        assert session.rng.bit_generator.state == other.rng.bit_generator.state


def test_a_rebuilt_buffer_draws_the_same_when_empty_places_have_left_since() -> None:
    session = Session()
    session.take([("a", [0, 0, 0, 0, *[5] * 14]), ("b", [5] * 20), ("c", [5] * 18)])
    session.take(1)
    session.take("draw")
    session.take([("d", [6] * 8)])
    other = session.restarted()
    assert [session.take("draw") for _ in range(5)] == [other.take("draw") for _ in range(5)]


def test_sums_of_a_rebuilt_buffer_are_equal_to_the_bit() -> None:
    """With long lists, where the order of additions could differ."""
    rng = np.random.default_rng(4)
    first, other = ReplayBuffer(100_000, 5_000), ReplayBuffer(100_000, 5_000)
    merges = [[rewarded("a", rng.normal(size=97).tolist(), version)] for version in range(90)]
    for merge in merges:
        first.extend(merge)
        draws(first, group_size=16)
        evict_before(first, merge[0].trajectories[0].version.step - 40)
    for merge in merges:
        other.extend(merge)
    evict_before(other, 49)
    for number in range(50):
        a, b = (draws(buffer, np.random.default_rng(number), group_size=16) for buffer in (first, other))
        assert [[id(t) for t in g.trajectories] for g in a] == [[id(t) for t in g.trajectories] for g in b]
