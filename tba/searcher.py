"""The Searcher: explores with slightly stale weights. One loop; it knows nothing of the Trainer but two channels."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from tba.activity import STARTING, Activity
from tba.channels.base import GroupSender, WeightSubscriber
from tba.engines.base import Engine
from tba.exploration import Exploration
from tba.policy import Reference
from tba.prompts import PromptStream
from tba.rewards.scorer import Scorer, Scores
from tba.search_metrics import SearchTally
from tba.tasks.base import Problem
from tba.types import (
    Group,
    Prompt,
    Report,
    Response,
    ScoredGroup,
    ScoredResponse,
    TbaError,
    TokenLogprobs,
    Version,
)

REPORT_SECONDS = 1.0
MAX_EVENTS_PER_BATCH = 5
MAX_PENDING_BATCHES = 8
"""Batches whose scores may be under way while the next is generated."""
PATIENCE_SECONDS = 1.0
"""How long scoring may fall behind before the Searcher waits for it: one slow group, or a first one that imports
something large, bounds nothing."""
GIVE_UP_AFTER = 64
"""Groups in a row without one usable reward after which the reward function, not the model, is at fault."""
SLOW_REWARDS_SHARE = 0.2
"""Share of a Searcher's work that goes into waiting for scores, from which on the user is told."""
SLOW_REWARDS_SECONDS = 20.0
"""Work that must have been done before such a share means anything."""
_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Searched:
    """A batch between generation and its scores."""

    problems: Sequence[Problem]
    responses: list[list[Response]]
    on_policy: bool
    """Sampled at the policy's own temperature."""
    reference: Sequence[Sequence[TokenLogprobs]] | None
    """None: to be computed once the scores say for which groups."""
    submitted: float
    """When it went to the scorer."""


class Searcher:
    """Takes prompts, generates, scores, adds the reference's view, hands groups up, and takes newer weights.

    `budget` is the number of groups to hand up per version of the weights, then it waits for the next: that is
    synchronous mode. Without a budget it waits for nobody; scores of one batch may arrive while the next is
    generated. Without a `reference` it hands groups up unread: the Learner has it then.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        reference: Reference | None,
        scorer: Scorer,
        prompts: PromptStream,
        exploration: Exploration,
        weights: WeightSubscriber,
        groups: GroupSender,
        num_responses: int,
        prompts_per_batch: int,
        activity: Activity,
        skip_equal_rewards: bool = False,
        in_flight_updates: bool = False,
        budget: int | None = None,
        evaluate: Callable[[], Mapping[str, Any]] | None = None,
        evaluation_period: int = 0,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        """`skipped`: how many prompts of the task it leaves out, by the reason, if it is to tell."""
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
        self.in_flight_updates = in_flight_updates
        self.budget = budget
        self.evaluate = evaluate
        self.evaluation_period = evaluation_period
        self.skipped = skipped or {}
        self.evaluated: Version | None = None
        self.serial = 0
        self._handed_up = 0
        self._pending: deque[Searched] = deque()
        self._fruitless = 0
        self._tally = SearchTally()
        self._has_reported = False
        self._told_of_slow_rewards = False

    def run(self) -> None:
        """Explore until the Trainer is done. Waits for the first weights, and in synchronous mode for the next."""
        self.begin()
        while not self.weights.closed:
            self.take_weights()
            if self.budget is not None and self._handed_up >= self.budget:
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
        with self.activity(STARTING, "waits for the first weights"), self.activity.quiet():
            self.weights.wait_for_first()

    def run_round(self) -> None:
        """One version's worth of exploration, to its end: the inline launcher's turn of this Searcher.

        It makes one report, so that records do not depend on the clock.
        """
        self._handed_up = 0
        self.take_weights()
        while self.budget is not None and self._handed_up < self.budget:
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
        """Explore one batch of prompts."""
        count = self.prompts_per_batch
        if self.budget is not None:
            count = min(count, self.budget - self._handed_up)
        problems = self.prompts.take(count)
        temperature = self.exploration.draw()
        with self.activity("generate", f"{len(problems)} prompts × {self.num_responses}"):
            between_steps = self._load_newer if self.in_flight_updates else None
            responses = self.engine.generate(
                [p.prompt for p in problems],
                self.num_responses,
                temperature=temperature,
                between_steps=between_steps,
            )
        submitted = time.monotonic()
        self.scorer.submit([p.request(r) for p, r in zip(problems, responses, strict=True)])
        # While the rewards are computed; unless they decide what it is needed for.
        reference = None if self.skip_equal_rewards else self._reference_view(problems, responses)
        self._pending.append(Searched(problems, responses, temperature is None, reference, submitted))
        while self._pending and (self.scorer.ready() or self._should_wait_for_scores()):
            self._hand_up(self._pending.popleft())
        self._tell_of_slow_rewards()

    def _should_wait_for_scores(self) -> bool:
        """Scores that are slow in coming arrive during later generations. But when more than this batch waits for a
        reward process, and not just for a moment, scoring is what bounds the Searcher, and running further ahead only
        lets data grow old."""
        if self.budget is not None or len(self._pending) > MAX_PENDING_BATCHES:
            return True
        oldest, newest = self._pending[0], self._pending[-1]
        falls_behind = self.scorer.num_queued > len(newest.problems)
        return falls_behind and time.monotonic() - oldest.submitted > PATIENCE_SECONDS

    def finish(self) -> None:
        """The Trainer is done: evaluate its last weights, if it ended well."""
        self._load_newer()
        if self.evaluate is not None and self.weights.finished and self.evaluated != self.engine.version:
            self._evaluate()
        self._report(now=True)

    def state(self) -> dict[str, Any]:
        """What repeats this Searcher from here on, given the weights."""
        return {
            "prompts": self.prompts.state(),
            "exploration": self.exploration.state(),
            "engine": self.engine.state(),
            "serial": self.serial,
            "evaluated": self.evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts.restore(state["prompts"])
        self.exploration.restore(state["exploration"])
        self.engine.restore(state["engine"])
        self.serial = state["serial"]
        self.evaluated = None if state["evaluated"] is None else Version.read(state["evaluated"])

    def _load_newer(self) -> None:
        with self.activity("load", "newer weights"):
            update = self.weights.newer_than(self.engine.version)
            if update is not None:
                self.engine.load(update)
                self._handed_up = 0
                self.activity.note(**update.version.record())

    def _period_of(self, version: Version) -> tuple[int, int]:
        """The stretch of one epoch's steps that is evaluated once."""
        return version.epoch, version.step // self.evaluation_period

    def _evaluate(self) -> None:
        assert self.evaluate is not None
        with self.activity("evaluate", f"version {self.engine.version}"):
            values = self.evaluate()
            self.evaluated = self.engine.version
            self.groups.send(Report("eval", self.name, {**self.engine.version.record(), **values}))

    def _hand_up(self, batch: Searched) -> None:
        with self.activity("score", "rewards of the last batch"):
            all_scores = self.scorer.collect()
        skipped = _equal_groups(all_scores) if self.skip_equal_rewards else frozenset()
        views = batch.reference or self._reference_of_others(batch, skipped)
        num_events = 0
        for number, (problem, responses, reference, scores) in enumerate(
            zip(batch.problems, batch.responses, views, all_scores, strict=True)
        ):
            self._tally.count(responses, reference, scores, self.scorer.names, on_policy=batch.on_policy)
            for failure in scores.failures[: MAX_EVENTS_PER_BATCH - num_events]:
                num_events += 1
                values = {"event": "reward_failed", "prompt_id": failure.prompt_id, "function": failure.function}
                self.groups.send(Report("event", self.name, values | {"why": failure.kind, "message": failure.message}))
            if number in skipped:
                self._tally.count_skipped_group()
                continue
            group = self._group(problem.prompt, responses, reference, scores, on_policy=batch.on_policy)
            # A single response has nothing to be compared with.
            if group is None:
                self._tally.count_dropped_group()
                self._give_up_if_fruitless(scores)
                continue
            self._fruitless = 0
            self._handed_up += 1
            self.serial += 1
            with self.activity("send", "groups to the Trainer"):
                self.groups.send(replace(group, serial=self.serial))

    def _group(
        self,
        prompt: Prompt,
        responses: Sequence[Response],
        reference: Sequence[TokenLogprobs],
        scores: Scores,
        *,
        on_policy: bool,
    ) -> Group | ScoredGroup | None:
        """Responses with a usable reward, read by the reference if it is here; the others end here, already counted.
        None: there are not two of them."""
        scored = {
            i: ScoredResponse(response, reward, parts)
            for i, (response, reward, parts) in enumerate(zip(responses, scores.rewards, scores.parts, strict=True))
            if reward is not None
        }
        if len(scored) < 2:
            return None
        if self.reference is None:
            return ScoredGroup(prompt, tuple(scored.values()), on_policy, self.name)
        return Group(prompt, tuple(s.trajectory(reference[i]) for i, s in scored.items()), self.name)

    def _reference_view(
        self, problems: Sequence[Problem], responses: Sequence[Sequence[Response]]
    ) -> list[list[TokenLogprobs]]:
        if self.reference is None:
            return [[] for _ in problems]
        with self.activity("reference"):
            return self.reference.token_logprobs([(p.prompt, r) for p, r in zip(problems, responses, strict=True)])

    def _reference_of_others(self, batch: Searched, skipped: Set[int]) -> list[list[TokenLogprobs]]:
        """For each group of the batch; nothing for those that are skipped."""
        wanted = [i for i in range(len(batch.problems)) if i not in skipped]
        views = self._reference_view([batch.problems[i] for i in wanted], [batch.responses[i] for i in wanted])
        found = dict(zip(wanted, views, strict=True))
        return [found.get(i, []) for i in range(len(batch.problems))]

    def _give_up_if_fruitless(self, scores: Scores) -> None:
        self._fruitless += 1
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
        """Send what has been counted since the last report: the first batch at once, then at most once a second."""
        now = now or not self._has_reported
        if not self._tally.is_empty and (now or self._tally.seconds >= REPORT_SECONDS):
            values = self._tally.values(self.engine.version, self.activity.seconds())
            self.groups.send(Report("search", self.name, values))
            self._tally = SearchTally()
            self._has_reported = True


def _equal_groups(all_scores: Sequence[Scores]) -> Set[int]:
    """Groups of a batch whose rewards are all equal. Were it all of them, the first is not: a run always moves on."""
    rewards = [{reward for reward in scores.rewards if reward is not None} for scores in all_scores]
    equal = {number for number, values in enumerate(rewards) if len(values) == 1}
    return equal if any(len(values) > 1 for values in rewards) else set(sorted(equal)[1:])
