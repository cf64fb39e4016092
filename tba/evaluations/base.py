"""What an evaluation is: numbers about a model on held-out problems, and every answer for reading."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tba.engines.base import Engine, stream
from tba.rewards.scorer import Scorer, Scores, Ticket
from tba.tasks.base import Problem, Task
from tba.types import Response

if TYPE_CHECKING:
    from tba.config.search import EvaluationConfig
    from tba.policy.policy import Reference

OnDone = Callable[[int], None]
"""Hears how many prompts have just been answered."""


@dataclass(frozen=True)
class Answer:
    """One graded response, for reading."""

    problem: Problem
    response: Response
    reward: float | None
    """None: its reward failed."""
    greedy: bool
    notes: dict[str, Any] = field(default_factory=dict)
    """What else an evaluation has to say about this response."""


@dataclass(frozen=True)
class Evaluation:
    values: dict[str, Any]
    """Flat numbers: `accuracy`, `accuracy_se`, `pass@k` … (docs/metrics.md)."""
    answers: list[Answer]


@dataclass(frozen=True)
class Pass:
    """One way over the prompts."""

    what: str
    """Such as `prompts answered greedily`."""
    num_prompts: int


Embed = Callable[[Sequence[str]], NDArray[np.float64]]
"""Texts to vectors of length 1."""


class References(Protocol):
    """Gives the reference model at a temperature; by default at that of sampling. The model is loaded once."""

    def __call__(self, temperature: float | None = None) -> Reference: ...


@dataclass(frozen=True)
class Parts:
    """What a task may make its evaluation of. Models beside the policy are loaded by whoever asks for them."""

    engine: Engine
    """Holds the weights to evaluate."""
    scorer: Scorer
    """The rewards of training."""
    task: Task
    settings: EvaluationConfig
    num_responses: int
    """Responses in a training group."""
    num_tokens: Callable[[str], int]
    """The length of a text in tokens of the policy."""
    seed: int
    gold: Callable[[], Scorer] | None
    """Starts the judge that `evaluation.gold_model` names; None: it names none."""
    embedder: Callable[[], Embed] | None
    """Loads `evaluation.embedding_model`; None: it names none."""
    reference: References | None
    """None: there is no model to compare with."""


class Evaluator(Protocol):
    """A task's evaluation of the weights its engine holds now."""

    @property
    def passes(self) -> Sequence[Pass]:
        """What it does, in this order: it reports as many prompts as they have together."""
        ...

    def __call__(self, progress: OnDone = ...) -> Evaluation: ...


def no_progress(done: int) -> None:
    """For callers that show none."""


def follow_passes(passes: Sequence[Pass], begin: Callable[[str, int], OnDone]) -> OnDone:
    """Takes how many more prompts are done, and tells it pass by pass: `begin` is called with each pass as it begins,
    and gives what hears of the prompts in it."""
    waiting = list(passes)
    current, left = begin(waiting[0].what, waiting[0].num_prompts), waiting.pop(0).num_prompts

    def advance(done: int) -> None:
        nonlocal current, left
        while done > left and waiting:
            current(left)
            done -= left
            current, left = begin(waiting[0].what, waiting[0].num_prompts), waiting.pop(0).num_prompts
        current(done)
        left -= done

    return advance


def graded(
    engine: Engine,
    scorer: Scorer,
    problems: Sequence[Problem],
    num_responses: int,
    prompts_per_batch: int,
    *,
    greedy: bool,
    progress: OnDone,
) -> list[list[Answer]]:
    """Generate and grade: the answers to each problem, in the problems' order.

    The longest prompts go first, so that what does not fit into memory is found out at once. Answers are graded while
    others are generated.
    """
    order = sorted(range(len(problems)), key=lambda i: -len(problems[i].prompt.tokens))
    made = stream(
        engine,
        [problems[i].prompt for i in order],
        num_responses,
        num_rows=prompts_per_batch * num_responses,
        greedy=greedy,
        full_precision=True,
    )
    pending: dict[int, tuple[list[Response], Ticket]] = {}
    for number, responses in made:
        index = order[number]
        pending[index] = responses, scorer.submit(problems[index].request(responses))
        progress(1)
    return [_answers(scorer.names, problem, *pending[i], greedy=greedy) for i, problem in enumerate(problems)]


def _answers(
    names: Sequence[str], problem: Problem, responses: Sequence[Response], ticket: Ticket, *, greedy: bool
) -> list[Answer]:
    scores = ticket.result()
    return [
        Answer(problem, response, reward, greedy, _notes(names, scores, i))
        for i, (response, reward) in enumerate(zip(responses, scores.rewards, strict=True))
    ]


def _notes(names: Sequence[str], scores: Scores, i: int) -> dict[str, Any]:
    """What functions noted of a response, and what each of them gave where there is more than one to tell apart."""
    parts = zip(names, scores.parts[i], strict=True) if len(names) > 1 else ()
    return {
        **{f"rewards/{name}": None if math.isnan(value) else value for name, value in parts},
        **{name: values[i] for name, values in scores.extras.items()},
    }


def response_values(answers: Sequence[Answer]) -> dict[str, Any]:
    """What every evaluation reports of the responses themselves."""
    rewards = [answer.reward for answer in answers if answer.reward is not None]
    parts = defaultdict[str, list[float]](list)
    for name, value in (item for answer in answers for item in answer.notes.items()):
        if name.startswith("rewards/") and value is not None:
            parts[name].append(value)
    reward, error = mean_and_error(rewards) if rewards else (math.nan, math.nan)
    return {
        "reward": reward,
        "reward_se": error,
        **{f"{name}/mean": float(np.mean(values)) for name, values in parts.items()},
        "failed": len(answers) - len(rewards),
        "completions/mean_length": float(np.mean([len(answer.response) for answer in answers])),
        "completions/clipped_ratio": float(np.mean([not answer.response.finished for answer in answers])),
    }


def mean_and_error(values: Sequence[float | bool]) -> tuple[float, float]:
    array = np.asarray(values, dtype=np.float64)
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return float(array.mean()), float(error)
