"""The Searcher: explores with slightly stale weights. One loop; it knows nothing of the Trainer but two channels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from tba.channels.base import GroupSender, WeightSubscriber
from tba.engines.base import Engine, Finished, Request
from tba.policy.policy import Reference
from tba.rewards.scorer import Scorer, Scores, Ticket
from tba.runs.activity import JOINING, Activity
from tba.runs.ledger import PROCESS_ENDED
from tba.runs.time_spent import time_record
from tba.search.metrics import SearchTally
from tba.search.prompts import Exploration, Prompts
from tba.search.responses import ResponseCounts
from tba.tasks.base import Problem
from tba.types import (
    Group,
    Report,
    Response,
    ScoredGroup,
    ScoredResponse,
    TbaError,
    TokenLogprobs,
    Unused,
    Version,
)

REPORT_SECONDS = 1.0
MAX_EVENTS_PER_REPORT = 5
MAX_PENDING_BATCHES = 8
"""Groups whose scores may be under way while others are generated, in batches of `prompts_per_batch`."""
PATIENCE_SECONDS = 1.0
"""How long scoring may fall behind before the Searcher waits for it: one slow group, or a first one that imports
something large, bounds nothing."""
HAND_UP_SECONDS = 0.03
"""How long a scored group may wait for others: the reference reads several in little more time than one."""
GIVE_UP_AFTER = 64
"""Groups in a row without one usable reward after which the reward function, not the model, is at fault."""
SLOW_REWARDS_SHARE = 0.2
"""Share of a Searcher's work that goes into waiting for scores, from which on the user is told."""
SLOW_REWARDS_SECONDS = 20.0
"""Work that must have been done before such a share means anything."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Asked:
    """What the engine was asked for."""

    problem: Problem
    on_policy: bool
    """Sampled at the policy's own temperature."""


@dataclass(frozen=True)
class Pending:
    """A group between its last token and its scores."""

    asked: Asked
    responses: list[Response]
    ticket: Ticket
    since: float
    """When its last token came."""


class Searcher:
    """Takes prompts, generates, scores, adds the reference's view, hands groups up, and takes newer weights.

    It keeps the engine full: `prompts_per_batch` × `num_responses` responses run at a time. A group goes to the scorer
    with its last token, and up with its scores, whatever became of those that began before it.

    `budget` is the number of groups to hand up of each version of the weights, after which it waits for the next: in
    synchronous mode, for one. There groups go up in the order they were asked for, so nothing depends on the clock.
    Without a budget it waits for nobody. Without a `reference` it hands groups up unread: the Learner has it then.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        reference: Reference | None,
        scorer: Scorer,
        prompts: Prompts,
        exploration: Exploration,
        weights: WeightSubscriber,
        groups: GroupSender,
        num_responses: int,
        prompts_per_batch: int,
        activity: Activity,
        skip_equal_rewards: bool = False,
        drop_cut_off: bool = False,
        in_flight_updates: bool = False,
        budget: Callable[[Version], int] | None = None,
        evaluate: Callable[[], Mapping[str, Any]] | None = None,
        evaluation_period: int = 0,
        skipped: Mapping[str, int] | None = None,
        success_reward: float = 0.5,
    ) -> None:
        """`skipped`: how many prompts of the task it leaves out, by the reason, if it is to tell. A response is right
        if its reward is above `success_reward`. With `drop_cut_off`, responses that the length limit cut off are left
        out of their group."""
        self.name = name
        self.engine = engine
        self.reference = reference
        self.scorer = scorer
        self.prompts = prompts
        self.exploration = exploration
        self.weights = weights
        self.groups = groups
        self.num_responses = num_responses
        self.prompts_per_batch = prompts_per_batch
        self.activity = activity
        self.skip_equal_rewards = skip_equal_rewards
        self.drop_cut_off = drop_cut_off
        self.in_flight_updates = in_flight_updates
        self.budget = budget
        self.evaluate = evaluate
        self.evaluation_period = evaluation_period
        self.skipped = skipped or {}
        self.evaluated: Version | None = None
        self.serial = 0
        self._handed_up = 0
        self._num_rows = prompts_per_batch * num_responses
        self._num_asked = 0
        self._asked: dict[int, Asked] = {}
        """Requests in the engine, by their id."""
        self._pending: dict[int, Pending] = {}
        """Oldest first."""
        self._skipped_in_a_row = 0
        self._num_events = 0
        self._fruitless = 0
        self.success_reward = success_reward
        self._tally = SearchTally(success_reward)
        self._responses = ResponseCounts()
        self._has_reported = False
        self._told_of_slow_rewards = False

    def run(self) -> None:
        """Explore until the Trainer is done. Waits for the first weights, and in synchronous mode for the next."""
        self.begin()
        while not self.weights.closed:
            self.take_weights()
            if self.budget is not None and self._num_owed() <= 0:
                with self.activity("wait", "for the Trainer's next weights"):
                    time.sleep(_POLL_SECONDS)
            else:
                self.search()
                self._report()
        self.finish()

    def begin(self) -> None:
        """Tell what it leaves out, and wait for the first weights."""
        for why, count in self.skipped.items():
            self.groups.send(Report("event", self.name, {"event": "prompts_skipped", "count": count, "why": why}))
        with self.activity(JOINING, "waits for the first weights"), self.activity.quiet():
            self.weights.wait_for_first()

    def run_round(self) -> None:
        """One version's worth of exploration, to its end: the inline launcher's turn of this Searcher.

        It makes one report, so that records do not depend on the clock.
        """
        self._handed_up = 0
        self.take_weights()
        while self.budget is not None and self._num_owed() > 0:
            self.search()
        self._report(now=True)

    def take_weights(self) -> None:
        """Load newer weights if there are any, and evaluate them if that is due."""
        self._load_newer()
        if self.evaluate is None or self.evaluation_period == 0:
            return
        if self.evaluated is None or self._period_of(self.engine.version) > self._period_of(self.evaluated):
            self._evaluate()

    def search(self) -> None:
        """Explore on: with a budget until what is left of it is done, else until a group is complete or scored."""
        if self.budget is not None:
            self._search_all(self._num_owed())
            return
        self._keep_engine_full()
        with self._generating():
            finished = self._collect_something()
        self._submit_for_scores(finished)
        self._hand_up_scored()
        self._tell_of_slow_rewards()

    def _num_owed(self) -> int:
        """Groups of this version that are left to be made."""
        assert self.budget is not None
        return self.budget(self.engine.version) - self._handed_up

    def _search_all(self, count: int) -> None:
        """As many groups to the end, handed up in the order they were asked for."""
        self._ask(count)
        ids = list(self._asked)
        self._empty_engine()
        self._wait_for_scores(ids)
        self._hand_up(ids)
        self._tell_of_slow_rewards()

    def _keep_engine_full(self) -> None:
        """The engine always has something to begin, and gets it in portions: it reads several prompts at once."""
        room = self._room()
        if room >= 0:
            self._ask(max(math.ceil(room / self.num_responses), math.ceil(self.prompts_per_batch / 2)))

    def _room(self) -> int:
        """Rows that are free beyond what the engine has to begin; negative while it has more than fits."""
        return self._num_rows - self.engine.num_running - self.engine.num_waiting

    def _ask(self, count: int) -> None:
        for problem in self.prompts.take(count):
            temperature = self.exploration.draw()
            self._num_asked += 1
            self._asked[self._num_asked] = Asked(problem, on_policy=temperature is None)
            self.engine.submit(Request(self._num_asked, problem.prompt, self.num_responses, temperature))

    def _generating(self) -> AbstractContextManager[None]:
        return self.activity("generate", f"{self.engine.num_running} responses")

    def _collect_something(self) -> list[Finished]:
        """Decode until there is something else to do."""
        while True:
            finished = self.engine.collect(self._num_rows)
            if finished or self._scored() or self.in_flight_updates or self._room() >= 0:
                return finished

    def _empty_engine(self, *, begin: bool = True) -> None:
        """Finish what the engine has; or, without beginning anything new, what it is at."""
        with self._generating():
            while self.engine.num_running or (begin and self.engine.num_waiting):
                self._submit_for_scores(self.engine.collect(self._num_rows if begin else 0))

    def _submit_for_scores(self, finished: Sequence[Finished]) -> None:
        for done in finished:
            asked = self._asked.pop(done.id)
            responses = [replace(response, on_policy=asked.on_policy) for response in done.responses]
            self._responses.finish(responses)
            ticket = self.scorer.submit(asked.problem.request(responses))
            self._pending[done.id] = Pending(asked, responses, ticket, time.monotonic())

    def _hand_up_scored(self) -> None:
        self._hand_up(self._scored())
        while self._should_wait_for_scores():
            oldest = next(iter(self._pending))
            self._wait_for_scores([oldest])
            self._hand_up([oldest])

    def _scored(self) -> list[int]:
        """Groups to hand up: those with scores, once they are a few, or one of them has waited for a moment."""
        ready = [id for id, group in self._pending.items() if group.ticket.ready]
        is_late = ready and time.monotonic() - self._pending[ready[0]].since > HAND_UP_SECONDS
        return ready if is_late or len(ready) >= self.prompts_per_batch / 2 else []

    def _should_wait_for_scores(self) -> bool:
        """Scores that are slow in coming arrive during later generations. But when more than a batch waits for a reward
        process, and not just for a moment, scoring is what bounds the Searcher, and running further ahead only lets
        data grow old."""
        if not self._pending:
            return False
        if len(self._pending) > MAX_PENDING_BATCHES * self.prompts_per_batch:
            return True
        oldest = next(iter(self._pending.values()))
        falls_behind = self.scorer.num_queued > self.prompts_per_batch
        return falls_behind and time.monotonic() - oldest.since > PATIENCE_SECONDS

    def _wait_for_scores(self, ids: Sequence[int]) -> None:
        with self.activity("score", f"rewards of {len(ids)} groups"):
            for id in ids:
                self._pending[id].ticket.result()

    def finish(self) -> None:
        """The Trainer is done: evaluate its last weights, if it ended well, and tell the last counts."""
        self._responses.abort(self._num_unfinished())
        self.engine.abort(list(self._asked))
        self._asked.clear()
        self._load_newer()
        if self.evaluate is not None and self.weights.finished and self.evaluated != self.engine.version:
            self._evaluate()
        self._report(now=True)
        self.groups.send(Report("event", self.name, {"event": PROCESS_ENDED, **self._so_far()}, is_last=True))

    def state(self) -> dict[str, Any]:
        """What repeats this Searcher from here on, given the weights."""
        return {
            "prompts": self.prompts.state(),
            "exploration": self.exploration.state(),
            "engine": self.engine.state(),
            "serial": self.serial,
            "evaluated": self.evaluated,
            "skipped_in_a_row": self._skipped_in_a_row,
            "responses": self._responses.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts.restore(state["prompts"])
        self.exploration.restore(state["exploration"])
        self.engine.restore(state["engine"])
        self.serial = state["serial"]
        self._skipped_in_a_row = state.get("skipped_in_a_row", 0)  # tba 0.1 had none
        self._responses.restore(state.get("responses", {}))
        self.evaluated = None if state["evaluated"] is None else Version.read(state["evaluated"])

    def _load_newer(self) -> None:
        """Unless they may change in flight, responses that run are finished with the weights they began with."""
        while True:
            with self.activity("load", "newer weights"):
                update = self.weights.newer_than(self.engine.version)
            if update is None:
                return
            if not self.in_flight_updates:
                self._empty_engine(begin=False)
            with self.activity("load", "newer weights"):
                self.engine.load(update)
                self.prompts.learn(update.note)
                self._handed_up = 0
                self.activity.note(**update.version.record())

    def _period_of(self, version: Version) -> tuple[int, int]:
        """The stretch of one epoch's steps that is evaluated once."""
        return version.epoch, version.step // self.evaluation_period

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        self._empty_engine()
        with self.activity("evaluate", f"version {self.engine.version}"):
            values = self.evaluate()
            self.evaluated = self.engine.version
            self.groups.send(Report("eval", self.name, {**self.engine.version.record(), **values}))

    def _hand_up(self, ids: Sequence[int]) -> None:
        """Groups whose scores are there go up, in this order."""
        groups = [(group := self._pending.pop(id), self._scores_of(group)) for id in ids]
        handed = [not self._skips(scores) for _, scores in groups]
        views = iter(self._reference_view([group for (group, _), wanted in zip(groups, handed, strict=True) if wanted]))
        for (group, scores), wanted in zip(groups, handed, strict=True):
            view = next(views) if wanted else []
            self._tally.count(group.responses, view, scores, self.scorer.names, on_policy=group.asked.on_policy)
            self._tell_of_failures(scores)
            if wanted:
                self._send(group, view, scores)
            else:
                self._tally.count_skipped_group()
                self._responses.settle(scores, "skipped")
                self._tell_of_unused(group)

    def _scores_of(self, group: Pending) -> Scores:
        scores = group.ticket.result()
        return scores.without_cut_off([r.finished for r in group.responses]) if self.drop_cut_off else scores

    def _tell_of_unused(self, group: Pending) -> None:
        """Where prompts are chosen, also by those that taught nothing."""
        if self.prompts.are_chosen:
            self.groups.send(Unused(group.asked.problem.prompt.id, len(group.responses)))

    def _send(self, pending: Pending, reference: Sequence[TokenLogprobs], scores: Scores) -> None:
        group = self._group(pending, reference, scores)
        # A single response has nothing to be compared with.
        if group is None:
            self._tally.count_dropped_group()
            self._responses.settle(scores, "dropped")
            self._tell_of_unused(pending)
            self._give_up_if_fruitless(scores)
            return
        self._fruitless = 0
        self._handed_up += 1
        self.serial += 1
        self._responses.settle(scores, "handed_up")
        with self.activity("send", "groups to the Trainer"):
            self.groups.send(replace(group, serial=self.serial))

    def _group(
        self, pending: Pending, reference: Sequence[TokenLogprobs], scores: Scores
    ) -> Group | ScoredGroup | None:
        """Responses with a usable reward, read by the reference if it is here; the others end here, already counted.
        None: there are not two of them."""
        rewarded = zip(pending.responses, scores.rewards, scores.parts, strict=True)
        scored = {
            i: ScoredResponse(response, reward, parts)
            for i, (response, reward, parts) in enumerate(rewarded)
            if reward is not None
        }
        if len(scored) < 2:
            return None
        prompt = pending.asked.problem.prompt
        if self.reference is None:
            return ScoredGroup(prompt, tuple(scored.values()), pending.asked.on_policy, self.name)
        return Group(prompt, tuple(s.trajectory(reference[i]) for i, s in scored.items()), self.name)

    def _skips(self, scores: Scores) -> bool:
        """Groups with equal rewards are skipped, but never `prompts_per_batch` in a row: a run always moves on."""
        is_equal = len({reward for reward in scores.rewards if reward is not None}) == 1
        if self.skip_equal_rewards and is_equal and self._skipped_in_a_row + 1 < self.prompts_per_batch:
            self._skipped_in_a_row += 1
            return True
        self._skipped_in_a_row = 0
        return False

    def _reference_view(self, groups: Sequence[Pending]) -> list[list[TokenLogprobs]]:
        if not groups or self.reference is None:
            return [[] for _ in groups]
        with self.activity("reference"):
            return self.reference.token_logprobs([(group.asked.problem.prompt, group.responses) for group in groups])

    def _tell_of_failures(self, scores: Scores) -> None:
        for failure in scores.failures[: MAX_EVENTS_PER_REPORT - self._num_events]:
            self._num_events += 1
            values = {"event": "reward_failed", "prompt_id": failure.prompt_id, "function": failure.function}
            self.groups.send(Report("event", self.name, values | {"why": failure.kind, "message": failure.message}))

    def _give_up_if_fruitless(self, scores: Scores) -> None:
        self._fruitless += 1
        if self._fruitless >= GIVE_UP_AFTER and scores.num_left_out and not scores.failures:
            raise TbaError(
                f"the length limit cut off all responses to {GIVE_UP_AFTER} prompts in a row, or all but one, and "
                "reward.cut_off = 'drop' leaves them out: raise engine.max_new_tokens, or give them a number"
            )
        if self._fruitless >= GIVE_UP_AFTER:
            why = f": {scores.failures[0].function}: {scores.failures[0].message}" if scores.failures else ""
            raise TbaError(f"no usable reward for {GIVE_UP_AFTER} prompts in a row; fix the reward function{why}")

    def _tell_of_slow_rewards(self) -> None:
        """Say once that scoring holds this Searcher up, and what helps."""
        spent = self.activity.seconds()
        waited = spent.get("score", 0.0)
        work = waited + spent.get("generate", 0.0) + spent.get("reference", 0.0)
        if self._told_of_slow_rewards or work < SLOW_REWARDS_SECONDS or waited < SLOW_REWARDS_SHARE * work:
            return
        self._told_of_slow_rewards = True
        remedy = f"raise reward.num_processes (now {self.scorer.num_processes})"
        if not self.scorer.overlaps:
            remedy += ", or make reward functions that wait for something `async def`"
        message = f"{self.name} spends {waited / work:.0%} of its time waiting for rewards: {remedy}"
        self.groups.send(Report("event", self.name, {"event": "slow_rewards", "message": message}))

    def _report(self, now: bool = False) -> None:
        """Send what has been counted since the last report: the first group at once, then at most once a second."""
        now = now or not self._has_reported
        if not self._tally.is_empty and (now or self._tally.seconds >= REPORT_SECONDS):
            values = self._tally.values(self.engine.version, self._so_far())
            self.groups.send(Report("search", self.name, values))
            self._tally = SearchTally(self.success_reward)
            self._num_events = 0
            self._has_reported = True

    def _so_far(self) -> dict[str, float]:
        """What became of its time and of its responses since its start."""
        num_pending = sum(len(group.responses) for group in self._pending.values())
        return {**time_record(self.activity), **self._responses.values(self._num_unfinished(), num_pending)}

    def _num_unfinished(self) -> int:
        """Responses that have begun, of requests that are not finished. Others of such a request may be done."""
        return len(self._asked) * self.num_responses - self.engine.num_waiting
