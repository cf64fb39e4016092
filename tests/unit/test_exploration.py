from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from tiny_models import token_logprobs

from tba.config.search import SearcherConfig
from tba.engines.base import generate
from tba.engines.stops import stop_tokens
from tba.engines.transformers import TransformersEngine
from tba.policy.batch import pack
from tba.policy.policy import load_model, load_tokenizer
from tba.search.prompts import Exploration
from tba.testing import save_tiny_model
from tba.types import Prompt


def test_a_share_of_requests_is_drawn_from_the_range() -> None:
    drawn = [exploration.draw() for exploration in [Exploration(0.5, 0.7, 2.0, [1, 2])] for _ in range(400)]
    hot = [t for t in drawn if t is not None]
    assert len(hot) == pytest.approx(200, abs=50)
    assert 0.7 <= min(hot) < 0.8
    assert 1.9 < max(hot) <= 2.0


def test_a_fraction_of_0_never_explores_and_of_1_always() -> None:
    assert {Exploration(0.0, 0.7, 2.0, [1]).draw() for _ in range(20)} == {None}
    always = Exploration(1.0, 0.7, 2.0, [1])
    assert None not in {always.draw() for _ in range(20)}


def test_restored_exploration_draws_what_the_first_would_have() -> None:
    one, other = Exploration(0.5, 0.7, 2.0, [1]), Exploration(0.5, 0.7, 2.0, [9])
    for _ in range(5):
        one.draw()
    other.restore(one.state())
    assert [one.draw() for _ in range(20)] == [other.draw() for _ in range(20)]


def test_a_checkpoint_holds_the_state_of_numpys_generator() -> None:
    """The format of checkpoints that exist."""
    numbers = np.random.default_rng(4)
    exploration = Exploration(1.0, 0.0, 1.0, [1])
    exploration.restore(numbers.bit_generator.state)
    drawn = [exploration.draw() for _ in range(5)]
    assert drawn == numbers.random(10)[1::2].tolist(), "each draw takes one number to decide, and one for the value"
    assert exploration.state() == numbers.bit_generator.state


def test_a_temperature_range_that_is_upside_down_is_refused() -> None:
    with pytest.raises(ValueError, match=r"searcher\.temperature_low is above"):
        SearcherConfig(temperature_low=2.0, temperature_high=1.0)


def engine_of(folder: str, *stop: str) -> TransformersEngine:
    model = to_float64(load_model(folder))
    return TransformersEngine(model, load_tokenizer(folder), temperature=1.0, max_new_tokens=12, seed=0, stop=stop)


@pytest.mark.parametrize("temperature", [None, 0.6, 1.7])
@in_float64()
def test_log_probabilities_are_those_of_the_sampler(tmp_path: Path, temperature: float | None) -> None:
    folder = str(save_tiny_model(tmp_path))
    prompts = [Prompt("p", "", (5, 6, 7))] * 3  # copies of one prompt are prompts like others
    answers = generate(engine_of(folder), prompts, 4, temperature=temperature)
    assert [len(row) for row in answers] == [4, 4, 4]
    packed = pack(list(zip(prompts, answers, strict=True)))
    with torch.no_grad():
        expected = token_logprobs(to_float64(load_model(folder)), packed, temperature=temperature or 1.0)
    found = np.concatenate([r.token_logprobs for row in answers for r in row])
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6)  # they are kept in float32
    assert len({r.tokens.tobytes() for row in answers for r in row}) > 6, "and copies get answers of their own"


@in_float64()
def test_a_response_may_end_with_a_text(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path))
    tokenizer = load_tokenizer(folder)
    vowel = tokenizer.convert_tokens_to_ids("e")
    stop = stop_tokens(load_model(folder), tokenizer, ["e"])
    assert {vowel, tokenizer.eos_token_id} <= stop
    assert tokenizer.convert_tokens_to_ids("x") not in stop
    answers = generate(engine_of(folder, "e"), [Prompt("p", "", (5, 6))], 64)[0]
    assert any(r.tokens[-1] == vowel for r in answers)
    assert all(vowel not in r.tokens[:-1] for r in answers)
    assert all(r.finished == (int(r.tokens[-1]) in stop) for r in answers)
