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
from tba.types import Group, Prompt

PROBLEMS = [Problem(Prompt(str(i), "", (1,)), "", {}) for i in range(4)]
BATCH, NUM_BATCHES = 2, 30


class Counting:
    """Numbers the batches it generates by their version, each after some seconds of a clock of its own; the reference
    is as good as any."""

    version = -1

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def monotonic(self) -> float:
        return (self.version + 1) * self._seconds

    def generate(self, prompts: Sequence[Prompt], num_responses: int, **options: Any) -> list[list[Any]]:
        self.version += 1
        return [[make_response([1], version=self.version) for _ in range(num_responses)] for _ in prompts]

    def token_logprobs(self, answered: Sequence[Any]) -> list[list[Any]]:
        return [[np.zeros(len(r), np.float32) for r in responses] for _, responses in answered]


class NeverReady:
    """Scores when asked for them, not before; its processes have begun as many requests as there are of them."""

    names = ("r",)

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._batches: deque[Sequence[ScoreRequest]] = deque()

    @property
    def num_in_line(self) -> int:
        return max(0, sum(map(len, self._batches)) - self._num_processes)

    def submit(self, requests: Sequence[ScoreRequest]) -> None:
        self._batches.append(requests)

    def ready(self) -> bool:
        return False

    def collect(self) -> list[Scores]:
        scores = [(float(i), (float(i),)) for i in range(2)]
        rewards, parts = zip(*scores, strict=True)
        return [Scores(rewards, parts, ()) for _ in self._batches.popleft()]


class Ages:
    """How many batches were generated since each group that is handed up."""

    def __init__(self, engine: Counting) -> None:
        self._engine = engine
        self.ages: list[int] = []

    def send(self, message: Any) -> None:
        if isinstance(message, Group):
            self.ages.append(self._engine.version - message.trajectories[0].version)


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
    parts: Any = {"engine": engine, "reference": engine, "scorer": NeverReady(num_processes), "groups": ages}
    searcher = Searcher(
        "searcher-0",
        **parts,
        prompts=PromptStream(PROBLEMS, [0]),
        exploration=Exploration(0.0, 1.0, 1.0, [0]),
        weights=None,  # type: ignore[arg-type]
        num_responses=2,
        prompts_per_batch=BATCH,
        activity=Activity(None, "searcher-0"),
    )
    for _ in range(NUM_BATCHES):
        searcher.search()
    assert len(ages.ages) == BATCH * (NUM_BATCHES - oldest)
    assert set(ages.ages) == {oldest}
