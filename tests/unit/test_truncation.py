"""Sampling from a part of the vocabulary: what may be drawn, how often, and which log-probabilities are recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import token_logprobs
from torch import Tensor

from tba.build.models import build_engine
from tba.config.settings import Config
from tba.engines import truncation as truncations
from tba.engines.base import generate
from tba.engines.sampling import draw_tokens
from tba.engines.transformers import TransformersEngine
from tba.engines.truncation import ALL_TOKENS, Truncation
from tba.policy.batch import pack
from tba.policy.policy import load_model, load_tokenizer
from tba.testing import save_tiny_model
from tba.types import Prompt, TbaError

CASES = [
    Truncation(top_p=0.7),
    Truncation(top_k=3),
    Truncation(min_p=0.2),
    Truncation(top_p=0.8, top_k=4, min_p=0.05),
    Truncation(top_p=1e-9),
    Truncation(top_k=99),
]


def renormalised(p: list[float], truncation: Truncation) -> list[float]:
    """By the definitions, one after the other, token by token: min-p, then top-k, then top-p."""

    def normalised(values: list[float]) -> list[float]:
        return [value / sum(values) for value in values]

    p = normalised([x if x >= truncation.min_p * max(p) else 0.0 for x in p])
    if truncation.top_k:
        least = sorted(p, reverse=True)[min(truncation.top_k, len(p)) - 1]
        p = normalised([x if x >= least else 0.0 for x in p])
    if truncation.top_p < 1:
        mass, least = 0.0, 1.0
        for x in sorted(p, reverse=True):
            if mass >= truncation.top_p:
                break
            mass, least = mass + x, x
        p = normalised([x if x >= least else 0.0 for x in p])
    return p


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=9, unique=True),
    st.floats(0.05, 1),
    st.integers(0, 10),
    st.floats(0, 1),
)
@settings(max_examples=200, deadline=None)
def test_what_is_left_is_as_defined(logits: list[float], top_p: float, top_k: int, min_p: float) -> None:
    truncation = Truncation(top_p, top_k, min_p)
    p_RV = torch.tensor([logits], dtype=torch.float64).softmax(-1)
    expected = renormalised(p_RV[0].tolist(), truncation)
    truncation.apply(p_RV)
    # Masses that are within rounding of a limit may fall on either side of it.
    if abs(sum(x > 0 for x in expected) - int((p_RV > 0).sum())) == 0:
        torch.testing.assert_close(p_RV[0], torch.tensor(expected, dtype=torch.float64), atol=1e-10, rtol=0)
    else:
        assert abs(sum(x > 0 for x in expected) - int((p_RV > 0).sum())) == 1
    assert float(p_RV.sum()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("likely", [2, 1024])
@pytest.mark.parametrize("truncation", CASES, ids=str)
def test_tokens_are_drawn_from_the_renormalised_softmax(
    truncation: Truncation, likely: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A grid of numbers in place of random ones: each token is drawn as often as its share says, to one in a grid."""
    monkeypatch.setattr(truncations, "LIKELY", likely)
    logits_V = torch.tensor([1.0, 3.0, 0.0, 2.2, -1.0, 2.0, 0.5], dtype=torch.float64)
    temperature, num = 0.8, 4000
    expected = renormalised((logits_V / temperature).softmax(-1).tolist(), truncation)
    uniform_A = np.arange(num) / num
    tokens, logprobs = draw_tokens(
        logits_V[None].clone(), np.zeros(num, np.int64), np.full(num, temperature), uniform_A, truncation
    )
    shares = np.bincount(tokens, minlength=len(expected)) / num
    np.testing.assert_allclose(shares, expected, atol=2 / num)
    np.testing.assert_allclose(logprobs, np.log(np.array(expected)[tokens]), atol=1e-10)


def test_without_truncation_nothing_is_touched() -> None:
    p_RV = torch.rand(3, 5).softmax(-1)
    before = p_RV.clone()
    ALL_TOKENS.apply(p_RV)
    assert torch.equal(p_RV, before)
    assert not ALL_TOKENS.leaves_out


def test_a_token_that_is_left_out_is_never_drawn_by_rounding() -> None:
    """The largest number below 1, times a total that it is rounded up to."""
    largest = np.float32(1 - 2.0**-24)
    for seed in range(200):
        logits_RV = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed))
        logits_RV[0, -10:] = -20.0
        _, logprobs = draw_tokens(logits_RV, np.array([0]), np.ones(1), np.array([largest]), Truncation(top_p=0.9))
        assert np.isfinite(logprobs).all()


def engine_of(folder: str, truncation: Truncation) -> TransformersEngine:
    model = to_float64(load_model(folder))
    return TransformersEngine(
        model, load_tokenizer(folder), temperature=0.9, max_new_tokens=8, seed=3, truncation=truncation
    )


def of_all_tokens(folder: str, answered: list) -> Tensor:  # type: ignore[type-arg]
    with torch.no_grad():
        return token_logprobs(to_float64(load_model(folder)), pack(answered), temperature=0.9)


@in_float64()
def test_recorded_log_probabilities_are_those_of_what_was_sampled_from(tmp_path: Path) -> None:
    """Each is that of the policy, divided by the mass of what was left: never below it, and equal with all tokens."""
    folder, prompt = str(save_tiny_model(tmp_path)), Prompt("p", "", (5, 6, 7))
    truncation = Truncation(top_k=4)
    (made,) = generate(engine_of(folder, truncation), [prompt], 16)
    policy = of_all_tokens(folder, [(prompt, made)]).numpy()
    recorded = np.concatenate([response.token_logprobs for response in made])
    assert (recorded > policy + 1e-6).all(), "four of 50 tokens never have all of the mass"
    model = to_float64(load_model(folder, attention="padded"))
    for response in made[:4]:
        tokens = response.tokens.tolist()
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt.tokens, *tokens]])).logits[0, 2:-1]
        for place, token in enumerate(tokens):
            p = renormalised((logits_TV[place] / 0.9).softmax(-1).tolist(), truncation)
            assert response.token_logprobs[place] == pytest.approx(np.log(p[token]), abs=1e-6)


@in_float64()
def test_an_evaluation_samples_the_policy_itself(tmp_path: Path) -> None:
    folder, prompt = str(save_tiny_model(tmp_path)), Prompt("p", "", (5, 6, 7))
    (plain,) = generate(engine_of(folder, ALL_TOKENS), [prompt], 8, seeds=[1])
    (asked,) = generate(engine_of(folder, Truncation(top_k=2)), [prompt], 8, full_precision=True, seeds=[1])
    assert [r.tokens.tolist() for r in asked] == [r.tokens.tolist() for r in plain]
    (left,) = generate(engine_of(folder, Truncation(top_k=2)), [prompt], 8, seeds=[1])
    assert [r.tokens.tolist() for r in left] != [r.tokens.tolist() for r in plain]


def test_the_settings_reach_the_engine_and_are_off_by_default() -> None:
    engine, _, _ = build_engine(Config.embedded())
    assert engine._truncation == ALL_TOKENS
    engine, _, _ = build_engine(Config.embedded(engine={"top_p": 0.9, "top_k": 20, "min_p": 0.1}))
    assert engine._truncation == Truncation(0.9, 20, 0.1)
    for setting, value in (("top_p", 0), ("top_p", 1.5), ("top_k", -1), ("min_p", 2)):
        with pytest.raises(TbaError, match=f"engine.{setting}"):
            Config.embedded(engine={setting: value})
