"""How good summaries are, by a judge that training never saw, and how far the policy went from its reference for it.

A win rate alone says little: longer summaries win more often, and any reward model can be exploited. So the lengths
stand beside it, and the KL it was bought with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tba.engines.base import Engine, stream
from tba.evaluations.base import Answer, Evaluation, OnDone, Pass, graded, mean_and_error, no_progress, response_values
from tba.policy.policy import Reference
from tba.rewards.scorer import Scorer, ScoreRequest
from tba.tasks.base import Problem


@dataclass(frozen=True)
class PreferenceEvaluator:
    """Win rate on greedy responses; KL on sampled ones, because only those come from the policy itself."""

    engine: Engine
    scorer: Scorer
    problems: Sequence[Problem]
    num_samples: int
    """Sampled responses a problem for the estimate of KL."""
    prompts_per_batch: int
    num_tokens: Callable[[str], int]
    """The length of a text in tokens of the policy."""
    gold: Callable[[], Scorer] | None
    """Makes the judge; it lives for one evaluation. None: no win rate."""
    reference: Reference | None
    """At the sampling temperature. None: no KL."""
    untempered: Reference | None
    """The same model at temperature 1."""
    _references: dict[str, float] = field(default_factory=dict)
    """The judge's scores of reference summaries by prompt: they are the same at every evaluation."""

    @property
    def passes(self) -> Sequence[Pass]:
        greedy = Pass("posts summarised greedily", len(self.problems))
        sampled = Pass(f"posts summarised with {self.num_samples} samples each, for the KL", len(self.problems))
        return [greedy] if self.reference is None else [greedy, sampled]

    def __call__(self, progress: OnDone = no_progress) -> Evaluation:
        groups = graded(
            self.engine, self.scorer, self.problems, 1, self.prompts_per_batch, greedy=True, progress=progress
        )
        answers = [group[0] for group in groups]
        values: dict[str, Any] = {}
        if self.gold is not None:
            judged, answers = self._judge(answers)
            values |= judged
        if self.reference is not None and self.untempered is not None:
            values |= self._kl(self.reference, progress)
            values["paper_perplexity"] = self._paper_perplexity(self.untempered, answers)
        values |= {"num_prompts": len(answers), **response_values(answers), **self._reference_values()}
        return Evaluation(values, answers)

    def _judge(self, answers: Sequence[Answer]) -> tuple[dict[str, Any], list[Answer]]:
        """Each response against the reference summary of its post, where there is one. A tie is half a win."""
        assert self.gold is not None
        compared = [answer for answer in answers if answer.problem.demonstration]
        unknown = [answer.problem for answer in compared if answer.problem.prompt.id not in self._references]
        with self.gold() as judge:
            for problem, scores in zip(unknown, judge.score([_summary_request(p) for p in unknown]), strict=True):
                if (score := scores.rewards[0]) is not None:
                    self._references[problem.prompt.id] = score
            scores_of = judge.score([answer.problem.request([answer.response]) for answer in answers])
        gold = [scores.rewards[0] for scores in scores_of]
        noted = [_noted(answer, score, self._references) for answer, score in zip(answers, gold, strict=True)]
        wins = [answer.notes["win"] for answer in noted if answer.notes["win"] is not None]
        rate, error = mean_and_error(wins) if wins else (math.nan, math.nan)
        scored = [score for score in gold if score is not None]
        return {
            "win_rate": rate,
            "win_rate_se": error,
            "num_compared": len(wins),
            "gold_reward": float(np.mean(scored)) if scored else math.nan,
            "gold_failed": len(gold) - len(scored),
        }, noted

    def _kl(self, reference: Reference, progress: OnDone) -> dict[str, float]:
        """Mean of log π − log π_ref over responses sampled now: unbiased for KL(π ‖ π_ref) at the sampling temperature.

        Samples of one prompt are not independent of each other, so the error is that of the prompts' means.
        """
        prompts = [problem.prompt for problem in self.problems]
        batch = max(1, self.prompts_per_batch // self.num_samples)
        made = stream(self.engine, prompts, self.num_samples, num_rows=batch * self.num_samples, full_precision=True)
        means: dict[int, float] = {}
        for number, responses in made:
            [view] = reference.token_logprobs([(prompts[number], responses)])
            ratios = [r.logprob - float(v.sum(dtype=np.float64)) for r, v in zip(responses, view, strict=True)]
            means[number] = float(np.mean(ratios))
            progress(1)
        kl, error = mean_and_error([means[number] for number in range(len(prompts))])
        return {"kl": kl, "kl_se": error}

    def _paper_perplexity(self, untempered: Reference, answers: Sequence[Answer]) -> float:
        """The published figure: the reference's loss on a greedy response, divided by prompt and response tokens alike
        (all but the first), exponentiated, averaged.

        Hence values near 1.1. It is neither a perplexity nor a KL, and is here to be held against the paper's.
        """
        views = untempered.token_logprobs([(answer.problem.prompt, [answer.response]) for answer in answers])
        losses = [
            -float(view.sum(dtype=np.float64)) / (len(answer.problem.prompt.tokens) + len(answer.response) - 1)
            for answer, (view,) in zip(answers, views, strict=True)
        ]
        return float(np.mean(np.exp(losses)))

    def _reference_values(self) -> dict[str, float]:
        lengths = [self.num_tokens(problem.demonstration) for problem in self.problems if problem.demonstration]
        return {"reference/mean_length": float(np.mean(lengths)) if lengths else math.nan}


def _summary_request(problem: Problem) -> ScoreRequest:
    """The reference summary as if it were a finished response."""
    return replace(
        problem.request([]), completions=(problem.demonstration or "",), completion_ids=((),), finished=(True,)
    )


def _noted(answer: Answer, score: float | None, references: dict[str, float]) -> Answer:
    other = references.get(answer.problem.prompt.id)
    win = None if score is None or other is None else (score > other) + 0.5 * (score == other)
    notes = {"gold": score, "gold_reference": other, "win": win}
    return replace(answer, notes={**answer.notes, **notes})
