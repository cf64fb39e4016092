"""Score a model on held-out problems: greedy pass@1 and sampled pass@k, each with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tba.engines.base import Engine
from tba.rewards.scorer import Scorer
from tba.tasks.base import Problem
from tba.types import Response


@dataclass(frozen=True)
class Answer:
    """One graded response, for reading."""

    problem: Problem
    response: Response
    reward: float | None
    greedy: bool


@dataclass(frozen=True)
class Evaluation:
    values: dict[str, Any]
    """Flat numbers: `accuracy`, `accuracy_se`, `pass@k` … (docs/metrics.md)."""
    answers: list[Answer]


def evaluate(
    engine: Engine,
    scorer: Scorer,
    problems: Sequence[Problem],
    *,
    num_samples: int,
    success_reward: float,
    prompts_per_batch: int,
    progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Generate and grade. A response whose reward failed counts as wrong, and is counted in `failed`."""
    greedy = list(_graded(engine, scorer, problems, 1, prompts_per_batch, True, progress))
    values = _accuracy(greedy, success_reward)
    answers = [answer for group in greedy for answer in group]
    if num_samples > 0:
        # Sampled rows come num_samples to a prompt: keep the batch at about the same size.
        batch = max(1, prompts_per_batch // num_samples)
        sampled = list(_graded(engine, scorer, problems, num_samples, batch, False, progress))
        values |= pass_at_k([[_correct(a, success_reward) for a in group] for group in sampled])
        answers += [answer for group in sampled for answer in group]
    return Evaluation(values, answers)


def pass_at_k(correct: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Unbiased pass@k for k = 1, 2, 4, … n from n samples a problem (Chen et al. 2021), with standard errors."""
    n = len(correct[0])
    ks = sorted({2**i for i in range(n.bit_length()) if 2**i <= n} | {n})
    values = {}
    for k in ks:
        chances = [1 - math.comb(n - sum(row), k) / math.comb(n, k) for row in correct]
        values[f"pass@{k}"], values[f"pass@{k}_se"] = _mean_and_error(chances)
    return values


def _graded(
    engine: Engine,
    scorer: Scorer,
    problems: Sequence[Problem],
    num_responses: int,
    prompts_per_batch: int,
    greedy: bool,
    progress: Callable[[int], None],
) -> Iterator[list[Answer]]:
    for start in range(0, len(problems), prompts_per_batch):
        part = problems[start : start + prompts_per_batch]
        responses = engine.generate([p.prompt for p in part], num_responses, greedy=greedy)
        scores = scorer.score([p.request(r) for p, r in zip(part, responses, strict=True)])
        for problem, row, scored in zip(part, responses, scores, strict=True):
            yield [Answer(problem, r, reward, greedy) for r, reward in zip(row, scored.rewards, strict=True)]
        progress(len(part))


def _accuracy(groups: Sequence[Sequence[Answer]], success_reward: float) -> dict[str, Any]:
    answers = [group[0] for group in groups]
    accuracy, error = _mean_and_error([_correct(answer, success_reward) for answer in answers])
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    return {
        "accuracy": accuracy,
        "accuracy_se": error,
        "reward": float(np.mean(rewards)) if rewards else math.nan,
        "num_prompts": len(answers),
        "failed": len(answers) - len(rewards),
        "completions/mean_length": float(np.mean([len(answer.response) for answer in answers])),
        "completions/clipped_ratio": float(np.mean([not answer.response.finished for answer in answers])),
    }


def _correct(answer: Answer, success_reward: float) -> bool:
    return answer.reward is not None and answer.reward > success_reward


def _mean_and_error(values: Sequence[float | bool]) -> tuple[float, float]:
    array = np.asarray(values, dtype=np.float64)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), float(error)
