"""Groups between their last token and the Trainer: they get their scores, are read by the reference and go up."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tba.channels.base import GroupSender
from tba.policy.policy import Reference
from tba.rewards.scorer import Scorer, Scores, Ticket
from tba.runs.activity import Activity
from tba.runs.wording import counted
from tba.samples.bounded import bounded_json
from tba.search.constant_scores import ConstantScores
from tba.search.reports import Reports
from tba.tasks.base import Problem
from tba.types import About, Group, Response, ScoredGroup, ScoredResponse, TbaError, TokenLogprobs, Unused

MAX_PENDING_BATCHES = 8
"""Groups whose scores may be under way while others are generated, in batches of `prompts_per_batch`."""
PATIENCE_SECONDS = 1.0
"""How long scoring may fall behind before the Searcher waits for it: one slow group, or a first one that imports
something large, bounds nothing."""
HAND_UP_SECONDS = 0.03
"""How long a scored group may wait for others: the reference reads several in little more time than one."""
GIVE_UP_AFTER = 64
"""Groups in a row without one usable reward after which the reward function, not the model, is at fault."""


@dataclass(frozen=True)
class Pending:
    """A group between its last token and its scores."""

    problem: Problem
    responses: list[Response]
    on_policy: bool
    """Sampled at the policy's own temperature."""
    ticket: Ticket
    since: float
    """When its last token came."""


class HandUp:
    """A group is submitted for scores with its last token, and goes up with its scores: as soon as they are there
    (`send_due`), or in an order that is given (`send_in_order`). Groups are known by the ids of their requests.

    Without a `reference` groups go up unread: the Learner has it then.
    """

    def __init__(
        self,
        name: str,
        *,
        scorer: Scorer,
        reference: Reference | None,
        groups: GroupSender,
        reports: Reports,
        activity: Activity,
        prompts_per_batch: int,
        skip_equal_rewards: bool = False,
        tells_of_unused: bool = False,
        constant_scores: ConstantScores | None = None,
        drop_cut_off: bool = False,
    ) -> None:
        """`tells_of_unused`: where prompts are chosen, they are chosen by groups that taught nothing, too.
        `constant_scores`: if it is to tell of rewards that never differ. With `drop_cut_off`, responses that the length
        limit cut off are left out of their group."""
        self.name = name
        self.scorer = scorer
        self.reference = reference
        self.groups = groups
        self.reports = reports
        self.activity = activity
        self.prompts_per_batch = prompts_per_batch
        self.skip_equal_rewards = skip_equal_rewards
        self.tells_of_unused = tells_of_unused
        self.constant_scores = constant_scores
        self.drop_cut_off = drop_cut_off
        self.serial = 0
        """Of the last group that was handed up."""
        self._pending: dict[int, Pending] = {}
        """Oldest first."""
        self._skipped_in_a_row = 0
        self._fruitless = 0

    @property
    def num_pending(self) -> int:
        """Responses that wait for their scores."""
        return sum(len(group.responses) for group in self._pending.values())

    def submit(self, id: int, problem: Problem, responses: Sequence[Response], *, on_policy: bool) -> None:
        """Ask for the scores of a group whose last token came."""
        told = [replace(response, on_policy=on_policy) for response in responses]
        self.reports.responses.finish(told)
        ticket = self.scorer.submit(problem.request(told))
        self._pending[id] = Pending(problem, told, on_policy, ticket, time.monotonic())

    def due(self) -> list[int]:
        """Groups to hand up: those with scores, once they are a few, or one of them has waited for a moment."""
        ready = [id for id, group in self._pending.items() if group.ticket.ready]
        is_late = ready and time.monotonic() - self._pending[ready[0]].since > HAND_UP_SECONDS
        return ready if is_late or len(ready) >= self.prompts_per_batch / 2 else []

    def send_due(self) -> None:
        """Hand up what is due. Waits for scores only while these are what bounds the Searcher."""
        self._hand_up(self.due())
        while self._should_wait():
            oldest = next(iter(self._pending))
            self._wait_for([oldest])
            self._hand_up([oldest])
        self.reports.tell_of_slow_rewards(self.scorer)

    def send_in_order(self, ids: Sequence[int]) -> int:
        """Wait for the scores of these groups and hand them up; how many of them went."""
        before = self.serial
        self._wait_for(ids)
        self._hand_up(ids)
        self.reports.tell_of_slow_rewards(self.scorer)
        return self.serial - before

    def state(self) -> dict[str, Any]:
        return {"serial": self.serial, "skipped_in_a_row": self._skipped_in_a_row}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.serial = state["serial"]
        self._skipped_in_a_row = state.get("skipped_in_a_row", 0)  # tba 0.1 had none

    def _should_wait(self) -> bool:
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

    def _wait_for(self, ids: Sequence[int]) -> None:
        with self.activity("score", f"rewards of {counted(len(ids), 'group')}"):
            for id in ids:
                self._pending[id].ticket.result()

    def _hand_up(self, ids: Sequence[int]) -> None:
        """Groups whose scores are there go up, in this order."""
        groups = [(group := self._pending.pop(id), self._scores_of(group)) for id in ids]
        handed = [not self._skips(scores) for _, scores in groups]
        views = iter(self._reference_view([group for (group, _), wanted in zip(groups, handed, strict=True) if wanted]))
        for (group, scores), wanted in zip(groups, handed, strict=True):
            view = next(views) if wanted else []
            self.reports.tally.count(group.responses, view, scores, self.scorer.names, on_policy=group.on_policy)
            self.reports.tell_of_failures(scores)
            self._tell_of_constant_scores(group.problem, scores)
            if wanted:
                self._send(group, view, scores)
            else:
                self.reports.tally.count_skipped_group()
                self.reports.responses.settle(scores, "skipped")
                self._tell_of_unused(group)

    def _scores_of(self, group: Pending) -> Scores:
        scores = group.ticket.result()
        return scores.without_cut_off([r.finished for r in group.responses]) if self.drop_cut_off else scores

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
            return self.reference.token_logprobs([(group.problem.prompt, group.responses) for group in groups])

    def _send(self, pending: Pending, reference: Sequence[TokenLogprobs], scores: Scores) -> None:
        group = self._group(pending, reference, scores)
        # A single response has nothing to be compared with.
        if group is None:
            self.reports.tally.count_dropped_group()
            self.reports.responses.settle(scores, "dropped")
            self._tell_of_unused(pending)
            self._give_up_if_fruitless(scores)
            return
        self._fruitless = 0
        self.serial += 1
        self.reports.responses.settle(scores, "handed_up")
        with self.activity("send"):
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
        prompt = pending.problem.prompt
        about = About(self.scorer.names, _notes(scores, list(scored)))
        if self.reference is None:
            return ScoredGroup(prompt, tuple(scored.values()), pending.on_policy, self.name, about=about)
        trajectories = tuple(s.trajectory(reference[i]) for i, s in scored.items())
        return Group(prompt, trajectories, self.name, about=about)

    def _tell_of_unused(self, group: Pending) -> None:
        if self.tells_of_unused:
            self.groups.send(Unused(group.problem.prompt.id, len(group.responses)))

    def _tell_of_constant_scores(self, problem: Problem, scores: Scores) -> None:
        if self.constant_scores is not None:
            for values in self.constant_scores.look(problem, scores, self.scorer.names):
                self.reports.tell(**values)

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


def _notes(scores: Scores, places: Sequence[int]) -> tuple[str, ...]:
    """What functions noted of the responses at these places."""
    if not scores.extras:
        return ()
    return tuple(bounded_json({name: values[i] for name, values in scores.extras.items()}) for i in places)
