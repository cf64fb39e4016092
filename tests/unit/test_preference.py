"""The evaluation by win rate and KL, against an engine, a judge and a reference that do as they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tba.engines.base import Request
from tba.evaluations.preference import PreferenceEvaluator
from tba.rewards.scorer import Ticket
from tba.rewards.scoring import ScoreRequest, Scores
from tba.tasks.base import Problem
from tba.testing import FakeEngine, ticket_of
from tba.types import Prompt, Response, Version


def response(text: str, logprobs: Sequence[float], finished: bool = True) -> Response:
    tokens = np.arange(len(logprobs), dtype=np.int32)
    return Response(tokens, np.asarray(logprobs, np.float32), ((Version(0, 0), len(logprobs)),), text, finished)


def problem(name: str, demonstration: str | None) -> Problem:
    return Problem(Prompt(name, name, (1, 2, 3)), name, {}, demonstration)


def engine_of(greedy: dict[str, str]) -> FakeEngine:
    """Greedy responses are texts by prompt; sampled ones have two tokens, with log-probabilities −1 and −2."""

    def respond(request: Request) -> list[Response]:
        if request.greedy:
            return [response(greedy[request.prompt.id], [-0.5])]
        return [response("s", [-1.0, -2.0]) for _ in range(request.num_responses)]

    return FakeEngine(respond)


@dataclass
class FakeScorer:
    """The score of a text is the number it holds; `?` fails."""

    asked: list[str] = field(default_factory=list)
    names: tuple[str, ...] = ("number",)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        self.asked += [text for r in requests for text in r.completions]
        rewards = [tuple(None if "?" in text else float(text) for text in r.completions) for r in requests]
        return [Scores(reward, ((0.0,),) * len(reward), ()) for reward in rewards]

    def submit(self, request: ScoreRequest) -> Ticket:
        return ticket_of(self.score([request])[0])

    def __enter__(self) -> FakeScorer:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass
class FakeReference:
    token_logprob: float

    def token_logprobs(self, answered: Sequence[tuple[Prompt, Sequence[Response]]]) -> Any:
        return [[np.full(len(r), self.token_logprob, np.float32) for r in responses] for _, responses in answered]


def evaluator(texts: dict[str, tuple[str, str | None]], **changes: Any) -> tuple[PreferenceEvaluator, FakeScorer]:
    judge = FakeScorer()
    settings: dict[str, Any] = {
        "num_samples": 2,
        "prompts_per_batch": 2,
        "num_tokens": len,
        "gold": lambda: judge,
        "reference": FakeReference(-4.0),
        "untempered": FakeReference(-3.0),
    }
    problems = [problem(name, reference) for name, (_, reference) in texts.items()]
    engine = engine_of({name: text for name, (text, _) in texts.items()})
    return PreferenceEvaluator(engine, FakeScorer(), problems, **(settings | changes)), judge  # type: ignore[arg-type]


FOUR = {"won": ("2", "1"), "lost": ("1", "3"), "tied": ("5", "5"), "also won": ("0", "-1")}


def test_a_tie_is_half_a_win() -> None:
    values = evaluator(FOUR)[0]().values
    assert values["win_rate"] == (1 + 0 + 0.5 + 1) / 4
    assert values["win_rate_se"] == pytest.approx(np.std([1, 0, 0.5, 1], ddof=1) / 2)
    assert values["num_compared"] == 4
    assert values["gold_reward"] == 2.0


def test_exchanging_the_sides_turns_the_win_rate_round() -> None:
    turned = {name: (reference, text) for name, (text, reference) in FOUR.items()}
    assert evaluator(FOUR)[0]().values["win_rate"] + evaluator(turned)[0]().values["win_rate"] == 1


def test_lengths_stand_beside_the_win_rate() -> None:
    values = evaluator(FOUR)[0]().values
    assert values["completions/mean_length"] == 1.0
    assert values["reference/mean_length"] == (1 + 1 + 1 + 2) / 4


def test_kl_is_the_mean_log_ratio_of_sampled_responses() -> None:
    values = evaluator(FOUR)[0]().values
    assert values["kl"] == pytest.approx((-1 - 2) - (-4 - 4))
    assert values["kl_se"] == pytest.approx(0)


def test_the_papers_figure_divides_by_the_prompt_too() -> None:
    # One response token at −3, over three prompt tokens and one of the response, without the first.
    assert evaluator(FOUR)[0]().values["paper_perplexity"] == pytest.approx(math.exp(3 / 3))


def test_what_cannot_be_compared_is_left_out_and_counted() -> None:
    texts = {"won": ("2", "1"), "no reference": ("9", None), "no score": ("?", "1"), "no score of it": ("1", "?")}
    result = evaluator(texts)[0]()
    assert result.values["win_rate"] == 1.0
    assert result.values["num_compared"] == 1
    assert result.values["gold_failed"] == 1
    assert [answer.notes["win"] for answer in result.answers] == [1.0, None, None, None]


def test_nothing_to_compare_is_no_win_rate() -> None:
    assert math.isnan(evaluator({"a": ("1", None)})[0]().values["win_rate"])


def test_references_are_scored_once() -> None:
    made, judge = evaluator(FOUR)
    first = made().values
    judge.asked.clear()
    assert made().values == first
    assert judge.asked == ["2", "1", "5", "0"], "responses only"


def test_without_a_judge_or_a_reference_their_numbers_are_missing() -> None:
    bare = evaluator(FOUR, gold=None, reference=None, untempered=None)[0]
    values = bare().values
    assert not {"win_rate", "kl", "paper_perplexity"} & values.keys()
    assert values["num_prompts"] == 4
    assert [one.num_prompts for one in bare.passes] == [4]


def test_progress_adds_up_to_the_prompts_announced() -> None:
    made, done = evaluator(FOUR)[0], []
    made(done.append)
    assert sum(done) == sum(one.num_prompts for one in made.passes) == 8
