"""Responses that the length limit cut off: scored like others, replaced by a number, or left out of their group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.build.tasks import build_scorer
from tba.config.settings import Config
from tba.rewards.scoring import Failure, ScoreRequest, Scores
from tba.runs.ledger import ENDED_AT_SEARCHER
from tba.search.hand_up import GIVE_UP_AFTER
from tba.search.responses import ResponseCounts
from tba.tasks.base import Task
from tba.testing import FakeEngine, make_response, ticket_of
from tba.types import Group, TbaError
from tests.unit.test_searcher import Counting, Told, searcher_of

REWARD = st.none() | st.floats(-5, 5)
RESPONSES = st.lists(st.tuples(REWARD, st.booleans()), min_size=1, max_size=8)


def scores_of(rewards: Any, **others: Any) -> Scores:
    return Scores(tuple(rewards), tuple((r or 0.0,) for r in rewards), (), **others)


def test_a_number_replaces_the_rewards_of_what_was_cut_off_and_of_nothing_else() -> None:
    scores = scores_of([1.0, 2.0, None, None]).with_cut_off_score([True, False, False, True], -1.0)
    assert scores.rewards == (1.0, -1.0, None, None), "a reward that failed stays a failure"
    assert scores.parts == ((1.0,), (2.0,), (0.0,), (0.0,)), "what each function gave is recorded as it was"


@given(RESPONSES)
@settings(max_examples=100, deadline=None)
def test_every_response_of_a_scored_group_has_one_fate(responses: list[tuple[float | None, bool]]) -> None:
    finished = [ended for _, ended in responses]
    scores = scores_of([reward for reward, _ in responses]).without_cut_off(finished)
    assert scores.rewards == tuple(reward if ended else None for reward, ended in responses)
    counts = ResponseCounts()
    counts.finish([make_response([1], finished=ended) for ended in finished])
    counts.settle(scores, "handed_up")
    values = counts.values(0, 0)
    assert values["responses/left_out"] == values["responses/cut"] == finished.count(False)
    assert values["responses/failed"] == sum(reward is None and ended for reward, ended in responses)
    fates = ("handed_up", *ENDED_AT_SEARCHER)
    assert values["responses/generated"] == sum(values[f"responses/{fate}"] for fate in fates)


class Cutting(Counting):
    """Four responses to each prompt, of which the length limit cuts off all but the first few."""

    def __init__(self, num_finished: int) -> None:
        FakeEngine.__init__(self, self._respond)
        self.num_finished, self.num_steps, self.seconds = num_finished, 0, 0.0
        self.finished_at = {}

    def _respond(self, request: Any) -> list[Any]:
        return [make_response([1 + i], finished=i < self.num_finished) for i in range(4)]


class Judge:
    """Rewards 0, 1, 2, 3."""

    names, num_processes, num_queued, overlaps = ("r",), 1, 0, False

    def __init__(self, failures: tuple[Failure, ...] = ()) -> None:
        self.failures = failures

    def submit(self, request: ScoreRequest) -> Any:
        return ticket_of(Scores((0.0, 1.0, 2.0, 3.0), ((0.0,),) * 4, self.failures))


@pytest.mark.parametrize("drops", [False, True])
def test_a_searcher_hands_up_what_is_left_of_a_group(drops: bool) -> None:
    told = Told()
    searcher = searcher_of(Cutting(3), told, Judge(), num_responses=4, drop_cut_off=drops)
    for _ in range(4):
        searcher.search()
    searcher.finish()
    groups = [message for message in told.sent if isinstance(message, Group)]
    assert groups
    rewards = [0.0, 1.0, 2.0] if drops else [0.0, 1.0, 2.0, 3.0]
    assert all([t.reward for t in group.trajectories] == rewards for group in groups)
    last = told.sent[-1].values
    assert (last["responses/left_out"] > 0) == drops
    assert last["responses/failed"] == 0


def test_what_was_left_out_is_no_failed_reward_in_the_records() -> None:
    told = Told()
    searcher = searcher_of(Cutting(3), told, Judge(), num_responses=4, drop_cut_off=True)
    searcher.search()
    searcher._report(now=True)
    (record,) = [m.values for m in told.sent if getattr(m, "kind", "") == "search"]
    assert (record["failed"], record["completions/clipped_ratio"]) == (0, 0.25)
    assert record["reward"] == 1.0, "of what is trained on"


def test_a_run_in_which_everything_is_cut_off_ends_with_the_setting_to_change() -> None:
    searcher = searcher_of(Cutting(1), Told(), Judge(), num_responses=4, drop_cut_off=True)

    def explore() -> None:
        for _ in range(3 * GIVE_UP_AFTER):
            searcher.search()

    with pytest.raises(TbaError, match=r"cut off .* raise engine.max_new_tokens"):
        explore()


def config_with(**reward: Any) -> Config:
    return Config.embedded(reward=reward)


def test_the_setting_takes_two_words_or_a_number() -> None:
    assert config_with().reward.cut_off == "score"
    assert config_with(cut_off="drop").reward.cut_off == "drop"
    assert config_with(cut_off="-1").reward.cut_off == -1.0, "as the command line gives it"
    for wrong in ("mask", "nan"):
        with pytest.raises(TbaError, match=r"reward\.cut_off"):
            config_with(cut_off=wrong)
    with pytest.raises(TbaError, match=r"reward.cut_off and reward.no_eos_score .* leave one out"):
        config_with(model="r", no_eos_score=-1.0, cut_off="drop")


@pytest.mark.parametrize(("cut_off", "expected"), [("score", None), ("drop", None), (-2.0, -2.0)])
def test_the_scorer_is_told_of_a_number_only(cut_off: Any, expected: float | None) -> None:
    task = Task("t", [], [], "tests.rewards_for_tests:act")
    assert build_scorer(config_with(cut_off=cut_off), task).cut_off_score == expected
