"""What Searchers hand up, made ready for the log: groups that the reference has not read are read by the Learner's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tba.channels.base import Message
from tba.learn.base import Learner
from tba.runs.activity import Activity
from tba.types import Group, Report, ScoredGroup, TokenLogprobs


class Arrivals:
    """Turns messages into groups and reports. Where the Learner has the reference, so does the estimate of KL that a
    Searcher's report then lacks come from here: from the groups of the Searcher since its last report."""

    def __init__(self, learner: Learner, activity: Activity) -> None:
        self._learner = learner
        self._activity = activity
        self._log_ratios: dict[str, list[float]] = defaultdict(list)

    def groups(self, messages: Sequence[Message]) -> list[Group]:
        """The groups among the messages, in their order."""
        unread = [message for message in messages if isinstance(message, ScoredGroup)]
        views = iter(self._views(unread))
        found: list[Group] = []
        for message in messages:
            if isinstance(message, Group):
                found.append(message)
            elif isinstance(message, ScoredGroup):
                found.append(self._group(message, next(views)))
        return found

    def reports(self, messages: Sequence[Message]) -> list[Report]:
        """The reports among messages whose groups have been taken."""
        return [self._with_kl(message) for message in messages if isinstance(message, Report)]

    def _views(self, groups: Sequence[ScoredGroup]) -> list[list[TokenLogprobs]]:
        if not groups:
            return []
        with self._activity("reference"):
            return self._learner.reference_logprobs([(g.prompt, [s.response for s in g.responses]) for g in groups])

    def _group(self, group: ScoredGroup, views: Sequence[TokenLogprobs]) -> Group:
        if group.on_policy:
            ratios = [
                scored.response.logprob - float(view.sum(dtype=np.float64))
                for scored, view in zip(group.responses, views, strict=True)
            ]
            # A reference that moves has not read them, and there is no estimate.
            self._log_ratios[group.source] += [ratio for ratio in ratios if not np.isnan(ratio)]
        trajectories = tuple(scored.trajectory(view) for scored, view in zip(group.responses, views, strict=True))
        return Group(group.prompt, trajectories, group.source, group.serial, group.about)

    def _with_kl(self, report: Report) -> Report:
        ratios = self._log_ratios.pop(report.source, []) if report.kind == "search" else []
        return replace(report, values={**report.values, "kl": float(np.mean(ratios))}) if ratios else report
