"""How far a Searcher runs ahead of its scores, with an engine and a scorer that only count."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tba.activity import Activity
from tba.exploration import Exploration
from tba.prompts import PromptStream
from tba.rewards.scoring import ScoreRequest, Scores
from tba.searcher import MAX_PENDING_BATCHES, PATIENCE_SECONDS, Searcher
from tba.tasks.base import Problem
from tba.testing import make_response
from tba.types import NEVER_PUBLISHED, Group, Prompt, Version

PROBLEMS = [Problem(Prompt(str(i), "", (1,)), "", {}) for i in range(4)]
BATCH, NUM_BATCHES = 2, 30


class Counting:
    """Numbers the batches it generates by their version, each after some seconds of a clock of its own; the reference
    is as good as any."""

    version = NEVER_PUBLISHED

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return (self.version.step + 1) * self._seconds

    def generate(self, prompts: Sequence[Prompt], num_responses: int, **options: Any) -> list[list[Any]]:
        self.version = Version(0, self.version.step + 1)
        return [[make_response([1], version=self.version) for _ in range(num_responses)] for _ in prompts]

    def token_logprobs(self, answered: Sequence[Any]) -> list[list[Any]]:
        return [[np.zeros(len(r), np.float32) for r in responses] for _, responses in answered]


class NeverReady:
    """Scores when asked for them, not before; its processes have begun as many requests as there are of them."""

    names = ("r",)

    def __init__(self, num_processes: int, overlaps: bool = False) -> None:
        self.num_processes = num_processes
        self.overlaps = overlaps
        self._batches: deque[Sequence[ScoreRequest]] = deque()

    @property
    def num_queued(self) -> int:
        return max(0, sum(map(len, self._batches)) - self.num_processes)

    def submit(self, requests: Sequence[ScoreRequest]) -> None:
        self._batches.append(requests)

    def ready(self) -> bool:
        return False

    def collect(self) -> list[Scores]:
        scores = [(float(i), (float(i),)) for i in range(2)]
        rewards, parts = zip(*scores, strict=True)
        return [Scores(rewards, parts, ()) for _ in self._batches.popleft()]


class Ages:
    """How many batches were generated since each group that is handed up; and the events beside them."""

    def __init__(self, engine: Counting) -> None:
        self._engine = engine
        self.ages: list[int] = []
        self.events: list[Any] = []

    def send(self, message: Any) -> None:
        if isinstance(message, Group):
            self.ages.append(self._engine.version.step - message.trajectories[0].version.step)
        elif message.kind == "event":
            self.events.append(message.values)


class Spent(Activity):
    """An activity whose clock a test sets."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(None, "searcher-0")
        self.spent = seconds

    def seconds(self) -> dict[str, float]:
        return self.spent


def counting_searcher(engine: Counting, groups: Ages, scorer: NeverReady, activity: Activity) -> Searcher:
    parts: Any = {"engine": engine, "reference": engine, "scorer": scorer, "groups": groups}
    return Searcher(
        "searcher-0",
        **parts,
        prompts=PromptStream(PROBLEMS, [0]),
        exploration=Exploration(0.0, 1.0, 1.0, [0]),
        weights=None,  # type: ignore[arg-type]
        num_responses=2,
        prompts_per_batch=BATCH,
        activity=activity,
    )


LONG = 1.5 * PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("num_processes", "seconds", "oldest"),
    [(1, LONG, 1), (BATCH, LONG, 2), (1000, LONG, MAX_PENDING_BATCHES), (1, PATIENCE_SECONDS / 3, 4)],
    ids=["one process", "one for each request of a batch", "one for each request", "one process, short batches"],
)
def test_a_searcher_runs_ahead_while_somebody_is_at_every_request_or_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, num_processes: int, seconds: float, oldest: int
) -> None:
    engine = Counting(seconds)
    monkeypatch.setattr("tba.searcher.time", engine)
    ages = Ages(engine)
    searcher = counting_searcher(engine, ages, NeverReady(num_processes), Activity(None, "searcher-0"))
    for _ in range(NUM_BATCHES):
        searcher.search()
    assert len(ages.ages) == BATCH * (NUM_BATCHES - oldest)
    assert set(ages.ages) == {oldest}


@pytest.mark.parametrize("overlaps", [False, True])
def test_rewards_that_hold_a_searcher_up_are_named_once_with_what_helps(overlaps: bool) -> None:
    engine = Counting(0.0)
    sent = Ages(engine)
    spent = Spent(generate=60.0, reference=10.0, score=10.0, load=500.0)
    searcher = counting_searcher(engine, sent, NeverReady(3, overlaps), spent)
    searcher.search()
    assert sent.events == []
    spent.spent["score"] = 30.0
    searcher.search()
    searcher.search()
    [event] = sent.events
    assert event["event"] == "slow_rewards"
    assert (
        "searcher-0 spends 30% of its time waiting for rewards: raise reward.num_processes (now 3)" in event["message"]
    )
    assert ("async def" in event["message"]) is not overlaps


def test_a_slow_first_reward_is_no_reason_to_complain() -> None:
    engine = Counting(0.0)
    sent = Ages(engine)
    counting_searcher(engine, sent, NeverReady(1), Spent(generate=1.0, score=9.0)).search()
    assert sent.events == []
