"""The Searcher: explores with slightly stale weights. One loop; it knows nothing of the Trainer but two channels."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tba.channels.base import WeightSubscriber
from tba.engines.base import Engine, Finished, Request
from tba.runs.activity import JOINING, Activity
from tba.runs.wording import counted
from tba.search.hand_up import HandUp
from tba.search.prompts import Exploration, Prompts
from tba.search.reports import Reports
from tba.tasks.base import Problem
from tba.types import Version

_POLL_SECONDS = 0.005


@dataclass(frozen=True)
class Asked:
    """What the engine was asked for."""

    problem: Problem
    on_policy: bool
    """Sampled at the policy's own temperature."""


class Searcher:
    """Takes prompts, generates, leaves finished groups to `hand_up`, and takes newer weights.

    It keeps the engine full: `prompts_per_batch` × `num_responses` responses run at a time. A group goes to the scorer
    with its last token, and up with its scores, whatever became of those that began before it.

    `budget` is the number of groups to hand up of each version of the weights, after which it waits for the next: in
    synchronous mode, for one. There groups go up in the order they were asked for, so nothing depends on the clock.
    Without a budget it waits for nobody.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        prompts: Prompts,
        exploration: Exploration,
        weights: WeightSubscriber,
        hand_up: HandUp,
        reports: Reports,
        num_responses: int,
        prompts_per_batch: int,
        activity: Activity,
        in_flight_updates: bool = False,
        budget: Callable[[Version], int] | None = None,
        evaluate: Callable[[], Mapping[str, Any]] | None = None,
        evaluated_prompts: int = 0,
        evaluation_period: int = 0,
        skipped: Mapping[str, int] | None = None,
    ) -> None:
        """`evaluated_prompts`: how many an evaluation answers. `skipped`: how many prompts of the task it leaves out,
        by the reason, if it is to tell."""
        self.engine = engine
        self.prompts = prompts
        self.exploration = exploration
        self.weights = weights
        self.hand_up = hand_up
        self.reports = reports
        self.num_responses = num_responses
        self.prompts_per_batch = prompts_per_batch
        self.activity = activity
        self.in_flight_updates = in_flight_updates
        self.budget = budget
        self.evaluate = evaluate
        self.evaluated_prompts = evaluated_prompts
        self.evaluation_period = evaluation_period
        self.skipped = skipped or {}
        self.evaluated: Version | None = None
        self._handed_up = 0
        self._num_rows = prompts_per_batch * num_responses
        self._num_asked = 0
        self._asked: dict[int, Asked] = {}
        """Requests in the engine, by their id."""

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
            self.reports.tell("prompts_skipped", count=count, why=why)
        with self.activity(JOINING), self.activity.quiet():
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
        self.hand_up.send_due()

    def finish(self) -> None:
        """The Trainer is done: evaluate its last weights, if it ended well, and tell the last counts."""
        self.reports.responses.abort(self._num_unfinished())
        self.engine.abort(list(self._asked))
        self._asked.clear()
        self._load_newer()
        if self.evaluate is not None and self.weights.finished and self.evaluated != self.engine.version:
            self._evaluate()
        self._report(now=True)
        self.reports.end(self._num_unfinished(), self.hand_up.num_pending)

    def close(self) -> None:
        """End the reward processes."""
        self.hand_up.scorer.close()

    def state(self) -> dict[str, Any]:
        """What repeats this Searcher from here on, given the weights."""
        return {
            "prompts": self.prompts.state(),
            "exploration": self.exploration.state(),
            "engine": self.engine.state(),
            "evaluated": self.evaluated,
            "responses": self.reports.responses.state(),
            **self.hand_up.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.prompts.restore(state["prompts"])
        self.exploration.restore(state["exploration"])
        self.engine.restore(state["engine"])
        self.evaluated = None if state["evaluated"] is None else Version.read(state["evaluated"])
        self.reports.responses.restore(state.get("responses", {}))
        self.hand_up.restore(state)

    def _num_owed(self) -> int:
        """Groups of this version that are left to be made."""
        assert self.budget is not None
        return self.budget(self.engine.version) - self._handed_up

    def _search_all(self, count: int) -> None:
        """As many groups to the end, handed up in the order they were asked for."""
        self._ask(count)
        ids = list(self._asked)
        self._empty_engine()
        self._handed_up += self.hand_up.send_in_order(ids)

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
        return self.activity("generate", counted(self.engine.num_running, "response"))

    def _collect_something(self) -> list[Finished]:
        """Decode until there is something else to do."""
        while True:
            finished = self.engine.collect(self._num_rows)
            if finished or self.hand_up.due() or self.in_flight_updates or self._room() >= 0:
                return finished

    def _empty_engine(self, *, begin: bool = True) -> None:
        """Finish what the engine has; or, without beginning anything new, what it is at."""
        with self._generating():
            while self.engine.num_running or (begin and self.engine.num_waiting):
                self._submit_for_scores(self.engine.collect(self._num_rows if begin else 0))

    def _submit_for_scores(self, finished: Sequence[Finished]) -> None:
        for done in finished:
            asked = self._asked.pop(done.id)
            self.hand_up.submit(done.id, asked.problem, done.responses, on_policy=asked.on_policy)

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
        with self.activity("evaluate", self._which_evaluation(), total=self.evaluated_prompts, unit="prompts"):
            values = self.evaluate()
            self.evaluated = self.engine.version
            self.reports.tell_of_evaluation(self.evaluated, values)

    def _which_evaluation(self) -> str:
        if self.weights.closed:
            return "last evaluation"
        return "first evaluation" if self.evaluated is None else f"evaluation of step {self.engine.version.step}"

    def _report(self, *, now: bool = False) -> None:
        self.reports.report(self.engine.version, self._num_unfinished(), self.hand_up.num_pending, now=now)

    def _num_unfinished(self) -> int:
        """Responses that have begun, of requests that are not finished. Others of such a request may be done."""
        return len(self._asked) * self.num_responses - self.engine.num_waiting
