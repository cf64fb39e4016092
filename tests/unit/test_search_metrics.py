"""The numbers of one `search` record, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tba.rewards.scoring import ScoreRequest, Scores
from tba.search.metrics import SearchTally
from tba.testing import score_now
from tba.types import Response, Version

REQUEST = ScoreRequest("p", "1+1=", ("a", "b", "c", "d"), ((1,), (2,), (3,), (4,)), (True,) * 4, {}, False)


def response(logprobs: list[float], *, finished: bool = True) -> Response:
    count = len(logprobs)
    return Response(np.arange(count, dtype=np.int32), np.array(logprobs, np.float32), ((0, count),), "", finished)


FOUR = [response([-1.0]) for _ in range(4)]
VIEW = [np.array([-1.0], np.float32) for _ in range(4)]


def ones(completions: list[str], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def fails(**columns: Any) -> list[float]:
    raise RuntimeError("no reward")


def every_other(completions: list[str], **columns: Any) -> list[float | None]:
    return [3.0 if i % 2 else None for i in range(len(completions))]


def means(*functions: Any, num_groups: int = 3) -> dict[str, Any]:
    """The record's means by function, of groups scored by all of them."""
    tally, named = SearchTally(), {function.__name__: function for function in functions}
    for _ in range(num_groups):
        scores = score_now(named, REQUEST)
        tally.count(FOUR, VIEW, scores, list(named))
    return {name: value for name, value in tally.values(Version(0, 0), {}).items() if name.startswith("rewards/")}


def test_the_mean_of_a_function_is_over_the_responses_it_applies_to() -> None:
    assert means(ones, every_other) == {"rewards/ones/mean": 1.0, "rewards/every_other/mean": 3.0}


def test_the_mean_of_a_function_does_not_hang_on_a_neighbour_that_fails() -> None:
    """No response has a reward, and still this function gave 1 to each of them."""
    assert means(ones, fails) == {"rewards/ones/mean": 1.0, "rewards/fails/mean": None}


def test_the_mean_of_a_function_counts_responses_and_not_groups() -> None:
    tally = SearchTally()
    for values in ([2.0, math.nan, math.nan, math.nan], [4.0, 4.0, 4.0, math.nan]):
        rewards = tuple(None if math.isnan(value) else value for value in values)
        tally.count(FOUR, VIEW, Scores(rewards, tuple((value,) for value in values), ()), ["r"])
    assert tally.values(Version(0, 0), {})["rewards/r/mean"] == pytest.approx(14 / 4)


def record(*groups: tuple[list[list[float]], list[list[float]], bool]) -> dict[str, Any]:
    """The record of groups given by the log-probabilities of policy and reference, and whether they are on-policy."""
    tally = SearchTally()
    for policy, reference, on_policy in groups:
        rewards = tuple(float(i) for i in range(len(policy)))
        tally.count(
            [response(logprobs) for logprobs in policy],
            [np.array(logprobs, np.float32) for logprobs in reference],
            Scores(rewards, tuple((reward,) for reward in rewards), ()),
            ["r"],
            on_policy=on_policy,
        )
    return tally.values(Version(0, 0), {})


def test_kl_is_the_mean_log_ratio_of_a_response() -> None:
    """(−3 + 4) and (−0.5 + 2.5) in one group, −6 + 3 in another: a mean over responses of sums over tokens."""
    one = ([[-1.0, -2.0], [-0.5]], [[-1.5, -2.5], [-2.5]], True)
    other = ([[-2.0, -2.0, -2.0]], [[-1.0, -1.0, -1.0]], True)
    assert record(one)["kl"] == pytest.approx(1.5)
    assert record(one, other)["kl"] == pytest.approx((1.0 + 2.0 - 3.0) / 3)


def test_kl_leaves_out_what_was_sampled_at_another_temperature() -> None:
    on_policy = ([[-1.0], [-2.0]], [[-1.25], [-2.25]], True)
    hot = ([[-9.0], [-9.0]], [[-1.0], [-1.0]], False)
    assert record(on_policy, hot)["kl"] == pytest.approx(0.25)
    assert record(hot)["kl"] is None


def test_kl_leaves_out_groups_without_a_view_of_the_reference() -> None:
    assert record(([[-1.0]], [[-2.0]], True), ([[-5.0], [-5.0]], [], True))["kl"] == pytest.approx(1.0)


def test_kl_of_the_reference_to_itself_is_exactly_0() -> None:
    logprobs = [[-0.1, -0.2, -0.3], [-7.7]]
    assert record((logprobs, logprobs, True))["kl"] == 0.0


def test_counts_lengths_and_the_share_that_was_cut() -> None:
    tally = SearchTally()
    responses = [response([-1.0] * 3), response([-1.0] * 5, finished=False)]
    views = [r.token_logprobs for r in responses]
    tally.count(responses, views, Scores((1.0, None), ((1.0,), (math.nan,)), ()), ["r"])
    tally.count(responses, views, Scores((2.0, 6.0), ((2.0,), (6.0,)), ()), ["r"])
    tally.count_dropped_group()
    found = tally.values(Version(0, 7), {"seconds/generate": 1.5})
    wanted = {"version": 7, "groups": 2, "groups_dropped": 1, "groups_skipped": 0, "tokens": 16, "failed": 1}
    wanted |= {"reward": 3.0, "rewards/r/mean": 3.0, "completions/mean_length": 4.0, "completions/clipped_ratio": 0.5}
    assert {name: found[name] for name in wanted} == wanted
    assert found["seconds/generate"] == 1.5


def test_entropy_is_the_mean_surprise_of_a_token_over_samples_of_the_policy() -> None:
    """Four tokens with −1, −2, −3 and −6; those sampled at another temperature do not count."""
    on_policy = ([[-1.0, -2.0, -3.0], [-6.0]], [], True)
    hot = ([[-9.0], [-9.0]], [], False)
    assert record(on_policy, hot)["entropy"] == pytest.approx(3.0)
    assert record(hot)["entropy"] is None


def test_entropy_is_that_of_the_distribution() -> None:
    """Of four equally likely tokens: log 4, whichever were drawn."""
    assert record(([[-math.log(4)] * 5, [-math.log(4)]], [], True))["entropy"] == pytest.approx(math.log(4))


def test_entropy_leaves_out_what_the_policy_did_not_write() -> None:
    made = response([-1.0, -3.0, 0.0, 0.0])
    made = replace(made, token_versions=((Version(0, 0), 2), (None, 2)))
    tally = SearchTally()
    tally.count([made], [], Scores((1.0,), ((1.0,),), ()), ["r"])
    assert tally.values(Version(0, 0), {})["entropy"] == pytest.approx(2.0)


def test_distinct_responses_and_right_ones() -> None:
    """Responses of as many tokens are equal here. Of a group of four three differ, of a group of two both are one."""
    tally = SearchTally(success_reward=2.0)
    four = [response([-1.0] * n) for n in (1, 2, 3, 3)]
    two = [response([-1.0]), response([-2.0])]
    tally.count(four, [], Scores((0.0, 2.0, 3.0, None), ((0.0,),) * 4, ()), ["r"])
    tally.count(two, [], Scores((4.0, 1.0), ((0.0,),) * 2, ()), ["r"])
    found = tally.values(Version(0, 0), {})
    assert found["completions/distinct"] == pytest.approx((3 / 4 + 1 / 2) / 2)
    assert found["right"] == 2 / 5
    assert found["reward_std"] == pytest.approx(np.std([0, 2, 3, 4, 1]))


def test_without_a_reward_nothing_is_right_or_wrong() -> None:
    tally = SearchTally()
    tally.count(FOUR, [], Scores((None,) * 4, ((math.nan,),) * 4, ()), ["r"])
    found = tally.values(Version(0, 0), {})
    assert (found["right"], found["reward_std"]) == (None, None)
