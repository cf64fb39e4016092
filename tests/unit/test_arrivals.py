"""Groups that the reference has not read are read by the Learner's when they are merged."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_cases import group, trajectory

from tba.learn.arrivals import Arrivals
from tba.runs.activity import Activity
from tba.types import Group, Prompt, Report, Response, ScoredGroup, ScoredResponse, TokenLogprobs


class ReferenceOf:
    """A Learner whose reference gives every token the log-probability −its id, and which counts what it reads."""

    def __init__(self) -> None:
        self.num_read = 0

    def reference_logprobs(self, answered: Sequence[tuple[Prompt, Sequence[Response]]]) -> list[list[TokenLogprobs]]:
        self.num_read += sum(len(responses) for _, responses in answered)
        return [[-r.tokens.astype(np.float32) for r in responses] for _, responses in answered]


def scored(serial: int, *, on_policy: bool = True, source: str = "searcher-0", tokens: Sequence[int] = (1, 2)) -> Any:
    found = [trajectory(reward, tokens=tokens) for reward in (0.0, 1.0)]
    responses = tuple(ScoredResponse(t.response, t.reward, t.reward_parts) for t in found)
    return ScoredGroup(Prompt(f"p-{serial}", "", (1,)), responses, on_policy, source, serial)


@pytest.fixture
def learner() -> ReferenceOf:
    return ReferenceOf()


@pytest.fixture
def arrivals(learner: ReferenceOf, tmp_path: Path) -> Arrivals:
    return Arrivals(learner, Activity(tmp_path, "trainer"))  # type: ignore[arg-type]


def test_groups_keep_their_order_and_their_names(arrivals: Arrivals, learner: ReferenceOf) -> None:
    read = group("p-2", [trajectory(0.5), trajectory(0.7)], "searcher-1", 7)
    groups = arrivals.groups([scored(1), read, Report("event", "searcher-0"), scored(2, tokens=(3, 4, 5))])
    assert [(g.source, g.serial) for g in groups] == [("searcher-0", 1), ("searcher-1", 7), ("searcher-0", 2)]
    assert groups[1] is read
    assert [t.reference_token_logprobs.tolist() for t in groups[2].trajectories] == [[-3.0, -4.0, -5.0]] * 2
    assert [t.reward for t in groups[0].trajectories] == [0.0, 1.0]
    assert learner.num_read == 4, "each response once, and none that has been read"


def test_a_report_gets_the_kl_of_its_searchers_groups_since_the_last(arrivals: Arrivals) -> None:
    messages = [
        scored(1),
        scored(1, source="searcher-1", tokens=(9, 9)),
        scored(2, on_policy=False, tokens=(50, 50)),
        Report("event", "searcher-0"),
        Report("search", "searcher-0", {"kl": None, "reward": 2.0}),
    ]
    [first, *_] = arrivals.groups(messages)
    event, report = arrivals.reports(messages)
    expected = np.mean([t.response.logprob - t.reference_token_logprobs.sum() for t in first.trajectories])
    assert event == Report("event", "searcher-0")
    assert report.values == {"kl": pytest.approx(expected), "reward": 2.0}
    [again] = arrivals.reports([Report("search", "searcher-0", {"kl": None})])
    assert again.values == {"kl": None}, "these groups have been told"


def test_the_kl_of_a_searcher_with_a_reference_stays(arrivals: Arrivals) -> None:
    messages = [group("a", [trajectory(1.0)]), Report("search", "searcher-0", {"kl": 0.25})]
    arrivals.groups(messages)
    assert [r.values for r in arrivals.reports(messages)] == [{"kl": 0.25}]


def test_an_unread_group_is_another_type_and_travels() -> None:
    sent = scored(3)
    assert not isinstance(sent, Group)
    received = pickle.loads(pickle.dumps(sent))
    assert (received.prompt, received.on_policy, received.source, received.serial) == (
        sent.prompt,
        True,
        "searcher-0",
        3,
    )
    assert received.responses[1].reward == 1.0
