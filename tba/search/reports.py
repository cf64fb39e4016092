"""What a Searcher tells the Trainer beside its groups: what it has counted, its evaluations and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tba.channels.base import GroupSender
from tba.rewards.scorer import Scorer, Scores
from tba.rewards.scoring import Failure
from tba.runs.activity import Activity
from tba.runs.ledger import PROCESS_ENDED
from tba.runs.time_spent import time_record
from tba.search.metrics import SearchTally
from tba.search.responses import ResponseCounts
from tba.types import Report, Version

REPORT_SECONDS = 1.0
MAX_EVENTS_PER_REPORT = 5
SLOW_REWARDS_SHARE = 0.2
"""Share of a Searcher's work that goes into waiting for scores, from which on the user is told."""
SLOW_REWARDS_SECONDS = 20.0
"""Work that must have been done before such a share means anything."""


class Reports:
    """Sends them under the Searcher's name. The counts are its own, and others add to them: `tally` since the last
    report, `responses` since the start.

    Who asks for a report says how many responses are being generated (`num_unfinished`) and how many wait for their
    scores (`num_pending`).
    """

    def __init__(self, name: str, groups: GroupSender, activity: Activity, success_reward: float = 0.5) -> None:
        """A response is right if its reward is above `success_reward`."""
        self._success_reward = success_reward
        self.tally = SearchTally(success_reward)
        self.responses = ResponseCounts()
        self._name = name
        self._groups = groups
        self._activity = activity
        self._num_events = 0
        self._has_reported = False
        self._told_of_slow_rewards = False
        self._told_of_failing: set[str] = set()
        """Reward functions."""

    def report(self, version: Version, num_unfinished: int, num_pending: int, *, now: bool = False) -> None:
        """Send what has been counted since the last report: the first group at once, then at most once a second."""
        now = now or not self._has_reported
        if not self.tally.is_empty and (now or self.tally.seconds >= REPORT_SECONDS):
            values = self.tally.values(version, self._so_far(num_unfinished, num_pending))
            self._groups.send(Report("search", self._name, values))
            self.tally = SearchTally(self._success_reward)
            self._num_events = 0
            self._has_reported = True

    def end(self, num_unfinished: int, num_pending: int) -> None:
        """Send the last counts, after which the Searcher sends nothing."""
        values = {"event": PROCESS_ENDED, **self._so_far(num_unfinished, num_pending)}
        self._groups.send(Report("event", self._name, values, is_last=True))

    def tell(self, event: str, **values: Any) -> None:
        self._groups.send(Report("event", self._name, {"event": event, **values}))

    def tell_of_evaluation(self, version: Version, values: Mapping[str, Any]) -> None:
        self._groups.send(Report("eval", self._name, {**version.record(), **values}))

    def tell_of_failures(self, scores: Scores) -> None:
        """Of a few between two reports: a reward function that is broken fails on every response. The first failure of
        a function is told to the user, too."""
        for failure in scores.failures:
            if failure.function not in self._told_of_failing:
                self._told_of_failing.add(failure.function)
                self.tell("reward_fails", function=failure.function, message=_first_failure(failure))
        for failure in scores.failures[: MAX_EVENTS_PER_REPORT - self._num_events]:
            self._num_events += 1
            named = {"prompt_id": failure.prompt_id, "function": failure.function}
            self.tell("reward_failed", **named, why=failure.kind, message=failure.message)

    def tell_of_slow_rewards(self, scorer: Scorer) -> None:
        """Say once that scoring holds this Searcher up, and what helps."""
        spent = self._activity.seconds()
        waited = spent.get("score", 0.0)
        work = waited + spent.get("generate", 0.0) + spent.get("reference", 0.0)
        if self._told_of_slow_rewards or work < SLOW_REWARDS_SECONDS or waited < SLOW_REWARDS_SHARE * work:
            return
        self._told_of_slow_rewards = True
        remedy = f"raise reward.num_processes (now {scorer.num_processes})"
        if not scorer.overlaps:
            remedy += ", or make reward functions that wait for something `async def`"
        message = f"{self._name} spends {waited / work:.0%} of its time waiting for rewards: {remedy}"
        self.tell("slow_rewards", message=message)

    def _so_far(self, num_unfinished: int, num_pending: int) -> dict[str, float]:
        """What became of its time and of its responses since its start."""
        return {**time_record(self._activity), **self.responses.values(num_unfinished, num_pending)}


def _first_failure(failure: Failure) -> str:
    named = f"reward function {failure.function}" if failure.function else "the reward process"
    return (
        f"{named}: {failure.message}. Responses without a reward are dropped and training goes on; further failures "
        "are counted and listed as reward_failed in metrics.jsonl"
    )
