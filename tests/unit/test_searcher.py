"""How a Searcher keeps its engine full and its groups apart, with an engine and a scorer that only count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tba.engines.base import Finished
from tba.rewards.scorer import Ticket
from tba.rewards.scoring import Failure, ScoreRequest, Scores
from tba.runs.activity import Activity
from tba.search.constant_scores import FIRST_GROUPS, ConstantScores
from tba.search.hand_up import MAX_PENDING_BATCHES, PATIENCE_SECONDS, HandUp
from tba.search.prompts import ChosenPrompts, Exploration, Prompts, PromptStream
from tba.search.reports import Reports
from tba.search.searcher import Searcher
from tba.tasks.base import Problem
from tba.testing import FakeEngine, make_response, ticket_of
from tba.types import Group, Prompt, Report, Response, TbaError, TokenLogprobs, Unused, Version, WeightUpdate

PROBLEMS = [Problem(Prompt(str(i), "", (1,)), str(i), {}) for i in range(50)]
BATCH = 2


class Counting(FakeEngine):
    """Finishes one request a step, after some seconds of a clock of its own; its reference is as good as any."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(lambda request: [make_response([1], text=request.prompt.id) for _ in range(2)])
        self.seconds = seconds
        self.num_steps = 0
        self.finished_at: dict[str, int] = {}

    def monotonic(self) -> float:
        return self.num_steps * self.seconds

    def collect(self, num_rows: int) -> list[Finished]:
        done = super().collect(1 if num_rows else 0)
        self.num_steps += 1
        self.finished_at |= {self.requests[finished.id - 1].prompt.id: self.num_steps for finished in done}
        return done

    def token_logprobs(self, answered: Sequence[tuple[Prompt, Sequence[Response]]]) -> list[list[TokenLogprobs]]:
        return [[np.zeros(len(r), np.float32) for r in responses] for _, responses in answered]


def scores_of(request: ScoreRequest) -> Scores:
    """The prompt's number, and one more."""
    rewards = (float(request.prompt_id), float(request.prompt_id) + 1)
    return Scores(rewards, tuple((reward,) for reward in rewards), ())


class Slow:
    """Scores when it is told to, or asked for them; its processes have begun as many requests as there are of them."""

    names = ("r",)

    def __init__(self, num_processes: int = 1, overlaps: bool = False) -> None:
        self.num_processes = num_processes
        self.overlaps = overlaps
        self.requests: dict[str, tuple[ScoreRequest, Future[Scores]]] = {}

    @property
    def num_queued(self) -> int:
        return max(0, sum(not future.done() for _, future in self.requests.values()) - self.num_processes)

    def submit(self, request: ScoreRequest) -> Ticket:
        scorer = self

        class Asked(Future[Scores]):
            def result(self, timeout: float | None = None) -> Scores:
                if not self.done():
                    scorer.score(request.prompt_id)
                return super().result(timeout)

        self.requests[request.prompt_id] = request, Asked()
        return Ticket(self.requests[request.prompt_id][1])

    def score(self, prompt_id: str) -> None:
        request, future = self.requests[prompt_id]
        future.set_result(scores_of(request))


class Sent:
    """The groups that are handed up, how many others were finished since each of them, and the events beside them."""

    def __init__(self, engine: Counting) -> None:
        self._engine = engine
        self.groups: list[Group] = []
        self.ages: list[int] = []
        self.events: list[Any] = []

    def send(self, message: Any) -> None:
        if isinstance(message, Group):
            self.groups.append(message)
            self.ages.append(self._engine.num_steps - self._engine.finished_at[message.prompt.id])
        elif message.kind == "event":
            self.events.append(message.values)


class Spent(Activity):
    """An activity whose clock a test sets."""

    def __init__(self, **seconds: float) -> None:
        super().__init__(None, "searcher-0")
        self.spent = seconds

    def seconds(self) -> dict[str, float]:
        return self.spent


class Weights:
    """A weight channel with what a test puts into it."""

    closed = finished = False

    def __init__(self) -> None:
        self.newest: WeightUpdate | None = None

    def newer_than(self, version: Version) -> WeightUpdate | None:
        return self.newest if self.newest is not None and self.newest.version > version else None


def searcher_of(
    engine: Any,
    sent: Any,
    scorer: Any,
    activity: Activity | None = None,
    *,
    prompts: Prompts | None = None,
    prompts_per_batch: int = BATCH,
    skip_equal_rewards: bool = False,
    constant_scores: ConstantScores | None = None,
    drop_cut_off: bool = False,
    **changes: Any,
) -> Searcher:
    name = "searcher-0"
    activity = activity or Activity(None, name)
    prompts = prompts or PromptStream(PROBLEMS, [0])
    reports = Reports(name, sent, activity)
    hand_up = HandUp(
        name,
        scorer=scorer,
        reference=engine,
        groups=sent,
        reports=reports,
        activity=activity,
        prompts_per_batch=prompts_per_batch,
        skip_equal_rewards=skip_equal_rewards,
        tells_of_unused=prompts.are_chosen,
        constant_scores=constant_scores,
        drop_cut_off=drop_cut_off,
    )
    settings: dict[str, Any] = {"weights": Weights(), "num_responses": 2}
    return Searcher(
        engine=engine,
        prompts=prompts,
        exploration=Exploration(0.0, 1.0, 1.0, [0]),
        hand_up=hand_up,
        reports=reports,
        prompts_per_batch=prompts_per_batch,
        activity=activity,
        **settings | changes,
    )


LONG = 1.5 * PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("num_processes", "seconds", "oldest"),
    [(1, LONG, 3), (4, LONG, 6), (1000, LONG, MAX_PENDING_BATCHES * BATCH), (1, PATIENCE_SECONDS / 6, 7)],
    ids=["one process", "several", "one for each request", "one process, short steps"],
)
def test_a_searcher_runs_ahead_while_somebody_is_at_every_request_or_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, num_processes: int, seconds: float, oldest: int
) -> None:
    engine = Counting(seconds)
    monkeypatch.setattr("tba.search.hand_up.time", engine)
    sent = Sent(engine)
    searcher = searcher_of(engine, sent, Slow(num_processes))
    for _ in range(40):
        searcher.search()
    assert set(sent.ages) == {oldest}
    assert len(sent.ages) == 40 - oldest


def test_a_group_goes_up_with_its_own_scores_as_soon_as_they_are_there() -> None:
    engine, scorer = Counting(), Slow(1000)
    sent = Sent(engine)
    searcher = searcher_of(engine, sent, scorer)
    order: list[str] = []
    rng = np.random.default_rng(0)
    for _ in range(30):
        searcher.search()
        waiting = [name for name, (_, future) in scorer.requests.items() if not future.done()]
        for name in rng.permutation(waiting)[: rng.integers(0, 3)].tolist():
            scorer.score(name)
            searcher.search()
            order.append(name)
            assert sent.groups[-1].prompt.id == name
    assert order != sorted(order, key=list(scorer.requests).index), "not in the order they were asked for"
    for group in sent.groups:
        assert [t.reward for t in group.trajectories] == [float(group.prompt.id), float(group.prompt.id) + 1]
        assert {t.response.text for t in group.trajectories} == {group.prompt.id}
    assert [group.serial for group in sent.groups] == list(range(1, len(sent.groups) + 1))


def test_the_engine_always_has_something_to_begin() -> None:
    engine = Counting()
    searcher = searcher_of(engine, Sent(engine), Slow(1000), prompts_per_batch=4)
    for _ in range(20):
        searcher.search()
        assert engine.num_waiting >= 4 * 2 - 2, "rows' worth of responses, but for the request just finished"
    assert len(engine.requests) <= 20 + 4 + 4, "and no more than it will soon begin"


def test_with_a_budget_groups_go_up_in_the_order_they_were_asked_for() -> None:
    class Reversed(Counting):
        def collect(self, num_rows: int) -> list[Finished]:
            return list(reversed(FakeEngine.collect(self, 100)))

    engine = Reversed()
    sent = Sent(engine)
    engine.finished_at = {problem.prompt.id: 0 for problem in PROBLEMS}
    searcher = searcher_of(engine, sent, Slow(), budget=lambda version: 7)
    searcher.run_round()
    assert [group.prompt.id for group in sent.groups] == [request.prompt.id for request in engine.requests]
    assert len(sent.groups) == 7
    searcher.run_round()
    assert len(sent.groups) == 14


def test_no_run_of_equal_rewards_is_longer_than_a_batch() -> None:
    class Equal(Slow):
        def submit(self, request: ScoreRequest) -> Ticket:
            different = request.prompt_id == "7"
            rewards = (0.0, float(different))
            return ticket_of(Scores(rewards, tuple((reward,) for reward in rewards), ()))

    engine = Counting()
    sent = Sent(engine)
    searcher = searcher_of(
        engine, sent, Equal(), budget=lambda version: 10, prompts_per_batch=4, skip_equal_rewards=True
    )
    searcher.run_round()
    asked = [request.prompt.id for request in engine.requests]
    places = [asked.index(group.prompt.id) for group in sent.groups]
    assert "7" in {group.prompt.id for group in sent.groups}
    assert max(np.diff([-1, *places])) == 4
    assert all(gap == 4 for place, gap in zip(places, np.diff([-1, *places]), strict=True) if asked[place] != "7")


@pytest.mark.parametrize("in_flight", [False, True])
def test_newer_weights_wait_for_responses_that_run_unless_they_may_change_in_flight(in_flight: bool) -> None:
    class Running(Counting):
        """Three responses run until they are let finish."""

        num_running = 3

        def collect(self, num_rows: int) -> list[Finished]:
            if num_rows == 0:
                self.num_running -= 1
                return []
            return super().collect(num_rows)

        def load(self, update: WeightUpdate) -> None:
            super().load(update)
            self.running_at_load = self.num_running

    engine, weights = Running(), Weights()
    searcher = searcher_of(engine, Sent(engine), Slow(), weights=weights, in_flight_updates=in_flight)
    weights.newest = WeightUpdate(Version(0, 4), {})
    searcher.take_weights()
    assert engine.version == Version(0, 4)
    assert engine.running_at_load == (3 if in_flight else 0)


def test_requests_have_temperatures_of_their_own() -> None:
    engine = Counting()
    sent = Sent(engine)
    searcher = searcher_of(engine, sent, Slow(), budget=lambda version: 40)
    searcher.exploration = Exploration(0.5, 0.7, 2.0, [1])
    searcher.run_round()
    temperatures = [request.temperature for request in engine.requests]
    assert 10 < temperatures.count(None) < 30
    assert len(set(temperatures)) == 41 - temperatures.count(None)
    told = [[t.response.on_policy for t in group.trajectories] for group in sent.groups]
    assert told == [[temperature is None] * 2 for temperature in temperatures], "and every response tells"


def test_the_end_drops_what_the_engine_is_at() -> None:
    engine = Counting()
    searcher = searcher_of(engine, Sent(engine), Slow())
    searcher.search()
    assert engine.num_waiting
    searcher.finish()
    assert engine.num_waiting == 0


@pytest.mark.parametrize("overlaps", [False, True])
def test_rewards_that_hold_a_searcher_up_are_named_once_with_what_helps(overlaps: bool) -> None:
    engine = Counting()
    sent = Sent(engine)
    spent = Spent(generate=60.0, reference=10.0, score=10.0, load=500.0)
    searcher = searcher_of(engine, sent, Slow(3, overlaps), spent)
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
    engine = Counting()
    sent = Sent(engine)
    searcher_of(engine, sent, Slow(), Spent(generate=1.0, score=9.0)).search()
    assert sent.events == []


# ---------------------------------------------------------------------------------------------------------------------
# What became of every response
# ---------------------------------------------------------------------------------------------------------------------


class Branching(FakeEngine):
    """A response a row and step; a request is finished with its last one. Every fourth response is cut off."""

    num_running = 0

    def __init__(self) -> None:
        super().__init__(lambda request: [])
        self.made: dict[int, list[Response]] = {}

    @property
    def num_waiting(self) -> int:
        return super().num_waiting - sum(map(len, self.made.values()))

    def collect(self, num_rows: int) -> list[Finished]:
        done = []
        if self._waiting and num_rows:
            request = self._waiting[0]
            made = self.made.setdefault(request.id, [])
            made.append(make_response([1], text=request.prompt.id, finished=len(made) % 4 != 3))
            if len(made) == request.num_responses:
                self._waiting.pop(0)
                done.append(Finished(request.id, self.made.pop(request.id)))
        return done

    def abort(self, ids: Sequence[int]) -> None:
        super().abort(ids)
        self.made = {id: made for id, made in self.made.items() if id not in ids}

    def token_logprobs(self, answered: Sequence[tuple[Prompt, Sequence[Response]]]) -> list[list[TokenLogprobs]]:
        return [[np.zeros(len(r), np.float32) for r in responses] for _, responses in answered]


REWARDS: list[tuple[float | None, ...]] = [
    (1.0, 0.0, 1.0, 0.0),
    (1.0, 1.0, 1.0, 1.0),
    (1.0, None, 0.0, None),
    (None, None, None, 2.0),
    (3.0, 3.0, None, 3.0),
    (None,) * 4,
]


class Judging:
    """Scores at once, by turns; the last few never come."""

    names = ("r",)
    num_processes, num_queued, overlaps = 1, 0, False

    def __init__(self, num_scored: int) -> None:
        self.num_scored, self.given = num_scored, list[tuple[float | None, ...]]()

    def submit(self, request: ScoreRequest) -> Ticket:
        if len(self.given) == self.num_scored:
            return Ticket(Future())
        self.given.append(REWARDS[len(self.given) % len(REWARDS)])
        return ticket_of(Scores(self.given[-1], ((0.0,),) * 4, ()))


class Told:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def fates(values: Any) -> int:
    names = ("unfinished", "pending", "failed", "left_out", "skipped", "dropped", "handed_up")
    return sum(values[f"responses/{name}"] for name in names)


@pytest.mark.parametrize("skips", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 6, 31, 170, 202])
def test_every_response_that_was_begun_has_one_fate(
    monkeypatch: pytest.MonkeyPatch, num_steps: int, skips: bool
) -> None:
    monkeypatch.setattr("tba.search.reports.REPORT_SECONDS", 0.0)
    # With its scores a group goes up at once, and does not wait for others by the clock of a machine that may be busy.
    monkeypatch.setattr("tba.search.hand_up.HAND_UP_SECONDS", -1.0)
    engine, told, scorer = Branching(), Told(), Judging(40)
    searcher = searcher_of(
        engine, told, scorer, num_responses=4, prompts_per_batch=3, skip_equal_rewards=skips, in_flight_updates=True
    )
    for _ in range(num_steps):
        searcher.search()
        searcher._report()
    searcher.finish()
    reports = [m.values for m in told.sent if isinstance(m, Report) and "responses/generated" in m.values]
    assert [m.is_last for m in told.sent if isinstance(m, Report)] == [False] * (len(reports) - 1) + [True]
    assert all(values["responses/generated"] == fates(values) for values in reports)
    last = reports[-1]
    assert last["responses/generated"] == num_steps, "one response begins a step"
    assert last["responses/handed_up"] == sum(len(m.trajectories) for m in told.sent if isinstance(m, Group))
    assert last["responses/failed"] == sum(reward is None for rewards in scorer.given for reward in rewards)
    if num_steps == 202:  # 50 groups, of which ten wait for their scores, and half of another
        assert (last["responses/pending"], last["responses/unfinished"]) == (4 * 10, 2)
        assert (last["responses/skipped"] > 0) == skips
        assert (last["responses/dropped"] > 0) != skips, "a reward alone is skipped, too"
        assert last["responses/cut"] == 50


def test_the_counts_go_on_after_a_resume() -> None:
    engine, told = Branching(), Told()
    searcher = searcher_of(engine, told, Judging(100), num_responses=4, budget=lambda version: 3)
    searcher.run_round()
    again = searcher_of(Branching(), told, Judging(100), num_responses=4, budget=lambda version: 3)
    again.restore(searcher.state())
    again.run_round()
    assert again.reports.responses.values(0, 0) == {**again.reports.responses.values(0, 0), "responses/generated": 24}


# Prompts that are chosen
# ---------------------------------------------------------------------------------------------------------------------


class Everything:
    """Whatever is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(message)


class SomeEqual:
    """Rewards by the prompt: equal for those below 20, none at all for those below 10, different for the others."""

    names, num_processes, overlaps, num_queued = ("r",), 1, False, 0

    def submit(self, request: ScoreRequest) -> Ticket:
        number = int(request.prompt_id)
        rewards: tuple[float | None, ...] = (None, None) if number < 10 else (1.0, 1.0 + (number >= 20))
        return ticket_of(Scores(rewards, tuple((reward or 0.0,) for reward in rewards), ()))


@pytest.mark.parametrize("choosing", [True, False])
def test_what_is_not_handed_up_is_told_where_prompts_are_chosen(choosing: bool) -> None:
    engine, sent = Counting(), Everything()
    prompts = (ChosenPrompts if choosing else PromptStream)(PROBLEMS, [0])
    searcher = searcher_of(
        engine,
        sent,
        SomeEqual(),
        prompts=prompts,
        budget=lambda version: 20,
        skip_equal_rewards=True,
        prompts_per_batch=1_000,
    )
    searcher.run_round()
    unused = [message.prompt_id for message in sent.messages if isinstance(message, Unused)]
    asked = [request.prompt.id for request in engine.requests]
    assert unused == ([i for i in asked if int(i) < 20] if choosing else [])
    assert [m.prompt.id for m in sent.messages if isinstance(m, Group)] == [i for i in asked if int(i) >= 20]


def test_the_note_of_a_version_is_learnt_with_its_weights() -> None:
    class Listening(PromptStream):
        notes: list[bytes]

        def learn(self, note: bytes) -> None:
            self.notes.append(note)

    prompts = Listening(PROBLEMS, [0])
    prompts.notes = []
    weights = Weights()
    engine = Counting()
    searcher = searcher_of(engine, Sent(engine), Slow(), prompts=prompts, weights=weights)
    searcher.take_weights()
    assert prompts.notes == []
    weights.newest = WeightUpdate(Version(0, 3), {}, b"three")
    searcher.take_weights()
    searcher.take_weights()
    assert prompts.notes == [b"three"]


def test_a_searcher_tells_of_a_reward_that_never_differs() -> None:
    class Zero(Slow):
        def submit(self, request: ScoreRequest) -> Ticket:
            return ticket_of(Scores((0.0,) * 2, ((0.0,),) * 2, ()))

    for watch in (ConstantScores((1.0,)), None):
        told = Told()
        searcher = searcher_of(Counting(), told, Zero(), constant_scores=watch, budget=lambda version: 3 * FIRST_GROUPS)
        searcher.run_round()
        events = [m for m in told.sent if isinstance(m, Report) and m.values.get("event") == "constant_reward"]
        assert len(events) == (watch is not None)


def test_the_first_failure_of_each_function_is_told_with_its_cause() -> None:
    class Failing(Slow):
        def submit(self, request: ScoreRequest) -> Ticket:
            failures = tuple(Failure("p", name, "raised", f"ValueError: {name}") for name in ("judge", "length"))
            return ticket_of(Scores((None,) * 2, ((math.nan,),) * 2, failures))

    told = Told()
    searcher = searcher_of(Counting(), told, Failing(), budget=lambda version: 4)
    with pytest.raises(TbaError, match="no usable reward for"):
        searcher.run_round()
    events = [m.values for m in told.sent if isinstance(m, Report) and m.values.get("event") == "reward_fails"]
    assert [event["function"] for event in events] == ["judge", "length"]
    assert events[0]["message"].startswith("reward function judge: ValueError: judge. ")
