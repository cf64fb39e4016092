"""Notices reward functions that give every response the same score: most often they misread their input."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tba.rewards.scoring import Scores
from tba.tasks.base import Problem

FIRST_GROUPS = 8
"""Groups that a function has to score before its scores can be called constant."""


class ConstantScores:
    """Looks at the first groups that each function scores, and tells once of one whose scores are all equal."""

    def __init__(self, weights: Sequence[float]) -> None:
        """`weights` of the functions. Those that weigh nothing only observe, and may observe the same each time."""
        self._weights = tuple(weights)
        self._given: dict[str, list[float]] = {}
        self._num_groups: dict[str, int] = {}

    def look(self, problem: Problem, scores: Scores, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Take in the scores of one group; an event for each function that turns out to be constant."""
        for place, (name, weight) in enumerate(zip(names, self._weights, strict=True)):
            given = [part[place] for part in scores.parts if not math.isnan(part[place])]
            if not weight or not given or self._num_groups.get(name, 0) >= FIRST_GROUPS:
                continue
            all_given = self._given.setdefault(name, [])
            all_given += given
            self._num_groups[name] = self._num_groups.get(name, 0) + 1
            if self._num_groups[name] == FIRST_GROUPS and len(set(all_given)) == 1:
                yield {"event": "constant_reward", "function": name, "message": _message(name, all_given, problem)}


def _message(name: str, given: Sequence[float], problem: Problem) -> str:
    form = "`completions` and `texts` are both lists of strings here; call it on a response that should score otherwise"
    if problem.conversational:
        form = (
            "for chat prompts as these `completions` are lists of messages, so read completion[0]['content'], or take "
            "`texts`, which are plain strings"
        )
    return (
        f"reward function {name} gave {given[0]:g} to all {len(given)} responses to the first {FIRST_GROUPS} prompts, "
        f"so nothing can be learned from it; {form}"
    )
