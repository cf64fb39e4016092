"""How many held-out problems a model solves: greedy pass@1 and sampled pass@k, each with its standard error."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tba.engines.base import Engine
from tba.evaluations.base import Answer, Evaluation, OnDone, Pass, graded, mean_and_error, no_progress, response_values
from tba.rewards.scorer import Scorer
from tba.tasks.base import Problem


@dataclass(frozen=True)
class AccuracyEvaluator:
    """A response whose reward failed counts as wrong, and is counted in `failed`."""

    engine: Engine
    scorer: Scorer
    problems: Sequence[Problem]
    num_samples: int
    """Sampled responses a problem; 0: greedy only."""
    success_reward: float
    prompts_per_batch: int
    breakdown: Sequence[str] = ()
    """Columns by whose values the greedy accuracy is broken down."""

    @property
    def passes(self) -> Sequence[Pass]:
        greedy = Pass("prompts answered greedily", len(self.problems))
        sampled = Pass(f"prompts answered with {self.num_samples} samples each", len(self.problems))
        return [greedy, sampled] if self.num_samples > 0 else [greedy]

    def __call__(self, progress: OnDone = no_progress) -> Evaluation:
        greedy = self._answers(1, self.prompts_per_batch, progress, greedy=True)
        answers = [answer for group in greedy for answer in group]
        accuracy, error = mean_and_error([self._correct(answer) for answer in answers])
        values = {"accuracy": accuracy, "accuracy_se": error, "num_prompts": len(answers), **response_values(answers)}
        by_column = self._broken_down(answers)
        if self.num_samples > 0:
            # Sampled rows come num_samples to a prompt: keep the batch at about the same size.
            batch = max(1, self.prompts_per_batch // self.num_samples)
            sampled = self._answers(self.num_samples, batch, progress, greedy=False)
            values |= pass_at_k([[self._correct(a) for a in group] for group in sampled])
            answers += [answer for group in sampled for answer in group]
        return Evaluation(values | by_column, answers)

    def _answers(self, num_responses: int, batch: int, progress: OnDone, *, greedy: bool) -> list[list[Answer]]:
        return graded(self.engine, self.scorer, self.problems, num_responses, batch, greedy=greedy, progress=progress)

    def _broken_down(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """`accuracy/level=3` with its error and its number of prompts, for each value of each column."""
        values: dict[str, Any] = {}
        for column in self.breakdown:
            groups = defaultdict[str, list[bool]](list)
            for answer in answers:
                if column in answer.problem.columns:
                    groups[str(answer.problem.columns[column])].append(self._correct(answer))
            for value, correct in sorted(groups.items()):
                name = f"accuracy/{column}={value}"
                values[name], values[f"{name}_se"] = mean_and_error(correct)
                values[f"{name}_n"] = len(correct)
        return values

    def _correct(self, answer: Answer) -> bool:
        return answer.reward is not None and answer.reward > self.success_reward


def pass_at_k(correct: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Unbiased pass@k for k = 1, 2, 4, … n from n samples a problem (Chen et al. 2021), with standard errors."""
    n = len(correct[0])
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    values = {}
    for k in ks:
        chances = [1 - math.comb(n - sum(row), k) / math.comb(n, k) for row in correct]
        values[f"pass@{k}"], values[f"pass@{k}_se"] = mean_and_error(chances)
    return values
