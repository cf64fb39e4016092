"""Laws of the streaming engine: what is in flight changes no sample, no row idles, every request finishes once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from float64 import in_float64
from hypothesis import given, settings
from hypothesis import strategies as st
from test_engine import (
    LIMIT,
    PROMPTS,
    TOKENIZER,
    assert_logprobs_are_those_of,
    engine_of,
    exact_model_of,
    model_of,
    token_lists,
    update_from,
)
from tiny_models import EOS
from transformers import PreTrainedModel

from tba.engines import bands
from tba.engines.base import Finished, Request, generate, stream
from tba.engines.branches import Ints
from tba.engines.numbers import Keys, Numbers, uniform
from tba.engines.transformers import MORE_ROWS, TransformersEngine
from tba.testing import character_tokenizer
from tba.types import Response, Version

MANY = [PROMPTS[i % len(PROMPTS)] for i in range(9)]
ENDS = list(range(EOS, 9))
"""Tokens that end responses, so many that these end, and rows become free, at different times."""


def ending_model(*, shared: bool = True) -> PreTrainedModel:
    model = exact_model_of(shared=shared)
    model.generation_config.eos_token_id = ENDS
    return model


def run_to_the_end(engine: TransformersEngine, num_rows: int) -> dict[int, list[Response]]:
    found: dict[int, list[Response]] = {}
    while engine.num_running or engine.num_waiting:
        for done in engine.collect(num_rows):
            assert done.id not in found
            found[done.id] = done.responses
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Refilled rows
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("band_cost", [0, 1_000, 10**9], ids=["many bands", "some", "one band"])
@pytest.mark.parametrize("num_rows", [1, 3, 7, 16])
@in_float64()
def test_what_is_in_flight_changes_no_sample(num_rows: int, band_cost: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of different lengths side by side, requests that begin in parts: the responses are those of all at once."""
    monkeypatch.setattr(bands, "BAND_COST", band_cost)
    monkeypatch.setattr(bands, "BLOCK", 5)
    expected = generate(engine_of(ending_model()), MANY, 4)
    found = generate(engine_of(ending_model()), MANY, 4, num_rows=num_rows)
    assert token_lists(found) == token_lists(expected)
    assert_logprobs_are_those_of(exact_model_of(shared=False), MANY, found, 1.0)


@in_float64()
def test_bands_that_have_become_similar_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest slots of a band leave it until it fits the next: the responses are those of all at once."""
    joined: list[int] = []
    absorb = bands.Band.absorb

    def counted(band: bands.Band, other: bands.Band) -> None:
        joined.append(other.num_slots)
        absorb(band, other)

    expected = generate(engine_of(ending_model()), MANY, 4)
    monkeypatch.setattr(bands.Band, "absorb", counted)
    monkeypatch.setattr(bands, "BLOCK", 5)
    for band_cost in range(0, 1_000, 100):
        monkeypatch.setattr(bands, "BAND_COST", band_cost)
        found = generate(engine_of(ending_model()), MANY, 4, num_rows=7)
        assert token_lists(found) == token_lists(expected)
        assert_logprobs_are_those_of(exact_model_of(shared=False), MANY, found, 1.0)
    assert sum(joined) > 0


@pytest.mark.parametrize("num_rows", [1, 5])
@in_float64()
def test_a_cache_of_one_length_gives_the_same_samples(num_rows: int) -> None:
    expected = generate(engine_of(ending_model()), MANY, 4)
    found = generate(engine_of(ending_model(shared=False)), MANY, 4, num_rows=num_rows)
    assert token_lists(found) == token_lists(expected)


@settings(deadline=None, max_examples=20)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.integers(0, 6)), min_size=1, max_size=8),
    num_rows=st.integers(1, 9),
    dropped=st.sets(st.integers(0, 7), max_size=3),
)
@in_float64()
def test_every_request_finishes_once_or_is_aborted(
    sizes: list[tuple[int, int, int]], num_rows: int, dropped: set[int]
) -> None:
    """Requests of any size that come at any step, and some that are dropped on the way, disturb nobody."""
    engine = engine_of(ending_model())
    finished: list[Finished] = []
    for number, (prompt, num_responses, steps) in enumerate(sizes):
        engine.submit(Request(number, PROMPTS[prompt], num_responses, seed=number))
        for _ in range(steps):
            finished += engine.collect(num_rows)
            assert engine.num_running <= num_rows + num_rows // MORE_ROWS
    gone = dropped - {done.id for done in finished}
    engine.abort(list(gone))
    while engine.num_running or engine.num_waiting:
        finished += engine.collect(num_rows)
    assert engine.collect(num_rows) == []
    assert sorted(done.id for done in finished) == sorted(set(range(len(sizes))) - gone)
    for done in finished:
        prompt, num_responses, _ = sizes[done.id]
        alone = generate(engine_of(ending_model()), [PROMPTS[prompt]], num_responses, seeds=[done.id])
        assert token_lists([done.responses]) == token_lists(alone)


@pytest.mark.parametrize("shared", [True, False])
def test_aborted_responses_leave_their_rows_to_others(shared: bool) -> None:
    engine = engine_of(model_of(shared=shared))
    for number in range(3):
        engine.submit(Request(number, PROMPTS[number], 4))
    engine.collect(8)
    engine.abort([0, 1, 77])
    assert (engine.num_running, engine.num_waiting) == (0, 4)
    engine.submit(Request(0, PROMPTS[0], 2))  # the number is free again
    assert {number: len(responses) for number, responses in run_to_the_end(engine, 8).items()} == {2: 4, 0: 2}
    engine.submit(Request(5, PROMPTS[0], 1))
    with pytest.raises(ValueError, match="already"):
        engine.submit(Request(5, PROMPTS[0], 1))


@in_float64()
def test_requests_with_settings_of_their_own_run_side_by_side() -> None:
    temperatures = [None, 0.5, 1.7]
    engine = engine_of(ending_model())
    for number, temperature in enumerate(temperatures):
        engine.submit(Request(number, PROMPTS[0], 3, temperature, seed=1))
    engine.submit(Request(3, PROMPTS[0], 2, greedy=True))
    found = run_to_the_end(engine, 5)
    for number, temperature in enumerate(temperatures):
        alone = generate(engine_of(ending_model()), [PROMPTS[0]], 3, temperature=temperature, seeds=[1])
        assert token_lists([found[number]]) == token_lists(alone)
        assert_logprobs_are_those_of(exact_model_of(shared=False), [PROMPTS[0]], [found[number]], temperature or 1.0)
    greedy = generate(engine_of(ending_model()), [PROMPTS[0]], 2, greedy=True)
    assert token_lists([found[3]]) == token_lists(greedy)


def test_full_precision_waits_for_what_runs_without_it() -> None:
    engine = engine_of(model_of(), precision="int8")
    engine.submit(Request(0, PROMPTS[0], 2))
    engine.submit(Request(1, PROMPTS[1], 2, full_precision=True, seed=9))
    found = run_to_the_end(engine, 100)
    alone = generate(engine_of(model_of(), precision="int8"), [PROMPTS[1]], 2, full_precision=True, seeds=[9])
    assert token_lists([found[1]]) == token_lists(alone)


def test_a_stream_needs_the_engine_for_itself_and_leaves_nothing_behind() -> None:
    engine = engine_of(model_of())
    answers = stream(engine, MANY, 4, num_rows=6)
    next(answers)
    with pytest.raises(RuntimeError, match="other requests"):
        generate(engine, MANY, 1)
    answers.close()
    assert (engine.num_running, engine.num_waiting) == (0, 0)


# ---------------------------------------------------------------------------------------------------------------------
# Rows are busy
# ---------------------------------------------------------------------------------------------------------------------

SHORTEST, LONGEST = 10, 200


def forced_lengths(key_A: Keys, token_A: Ints) -> Numbers:
    """Numbers that end a response with the last token of the vocabulary, at a length from 10 to 200 by its key."""
    length_A = SHORTEST + (key_A % np.uint64(LONGEST - SHORTEST + 1)).astype(np.int64)
    return np.where(token_A + 1 >= length_A, np.float32(1 - 2.0**-24), uniform(key_A, token_A) * np.float32(0.5))


@pytest.mark.parametrize(("num_rows", "num_drawn"), [(16, 15 + 3), (15, 15)])
def test_responses_to_a_prompt_begin_together_where_an_eighth_more_rows_are_enough(
    num_rows: int, num_drawn: int
) -> None:
    """All rows but one are taken, and three responses come: of 16 rows an eighth is 2, of 15 it is 1."""
    drawn: list[int] = []

    def counted(key_A: Keys, token_A: Ints) -> Numbers:
        drawn.append(len(key_A))
        return uniform(key_A, token_A)

    engine = TransformersEngine(ending_model(), TOKENIZER, temperature=1.0, max_new_tokens=8, seed=0, numbers=counted)
    engine.submit(Request(0, PROMPTS[0], num_rows - 1))
    engine.submit(Request(1, PROMPTS[1], 3))
    engine.collect(num_rows)
    assert drawn == [num_drawn]


@pytest.mark.parametrize(("num_rows", "num_responses"), [(16, 4), (32, 16)])
def test_no_row_idles_while_there_are_prompts(num_rows: int, num_responses: int) -> None:
    """Responses of 10 to 200 tokens: at least 95 % of the rows get a token, in the mean over the steps."""
    drawn: list[int] = []

    def counted(key_A: Keys, token_A: Ints) -> Numbers:
        drawn.append(len(key_A))
        return forced_lengths(key_A, token_A)

    model = model_of()
    model.generation_config.eos_token_id = model.config.vocab_size - 1
    tokenizer = character_tokenizer("abcdefghijklmnopqrstu")
    tokenizer.eos_token = None  # no other ends
    engine = TransformersEngine(model, tokenizer, temperature=1.0, max_new_tokens=LONGEST, seed=0, numbers=counted)
    lengths: list[int] = []
    num_steps = 400
    for number in range(num_steps):
        if engine.num_waiting < num_rows:
            for part in range(num_rows // num_responses):
                engine.submit(Request(number * num_rows + part, PROMPTS[part % 4], num_responses))
        lengths += [len(response) for done in engine.collect(num_rows) for response in done.responses]
    assert sum(drawn) >= 0.95 * num_rows * num_steps
    assert min(lengths) < 30
    assert max(lengths) > 180


# ---------------------------------------------------------------------------------------------------------------------
# Weights in flight
# ---------------------------------------------------------------------------------------------------------------------


def mixed_logprobs(models: Sequence[PreTrainedModel], prompt: Sequence[int], response: Response) -> list[float]:
    """Token by token with transformers' cache, each by the model of its version: keys and values of earlier tokens are
    those of the models that read them."""
    found = []
    versions = [version for version, count in response.token_versions for _ in range(count)]
    cache, ids = None, torch.tensor([prompt])
    for token, version in zip(response.tokens.tolist(), versions, strict=True):
        assert version is not None
        model = models[max(0, version.step)]
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, ids = output.past_key_values, torch.tensor([[token]])
        found.append(float(output.logits[0, -1].log_softmax(-1)[token]))
    return found


@pytest.mark.parametrize("load_at", [{3: 1}, {2: 1, 5: 2}])
@in_float64()
def test_logprobs_with_loads_in_flight_are_those_of_the_mixed_cache(load_at: dict[int, int]) -> None:
    """Responses that run keep what older weights have read; those that begin later know the newer weights alone."""
    plain = [exact_model_of(shared=False) for _ in range(3)]
    for step, model in enumerate(plain):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.data += 0.05 * step * torch.randn_like(parameter)
    engine = engine_of(ending_model())
    for number, prompt in enumerate(MANY):
        engine.submit(Request(number, prompt, 3))
    found: dict[int, list[Response]] = {}
    step = 0
    while engine.num_running or engine.num_waiting:
        if step in load_at:
            engine.load(update_from(plain[load_at[step]], load_at[step]))
        found |= {done.id: done.responses for done in engine.collect(6)}
        step += 1
    responses = [(MANY[number], response) for number, group in found.items() for response in group]
    mixed = [response for _, response in responses if len(response.token_versions) > 1]
    late = [response for _, response in responses if response.version == Version(0, max(load_at.values()))]
    assert mixed
    assert late
    with torch.no_grad():
        for prompt, response in responses:
            expected = mixed_logprobs(plain, prompt.tokens, response)
            np.testing.assert_allclose(response.token_logprobs, expected, rtol=1e-6, atol=1e-10)


@in_float64()
def test_without_rows_nothing_begins_and_what_runs_goes_on() -> None:
    engine = engine_of(ending_model())
    for number, prompt in enumerate(MANY):
        engine.submit(Request(number, prompt, 3))
    engine.collect(5)
    waiting = engine.num_waiting
    for _ in range(LIMIT):
        engine.collect(0)
    assert (engine.num_running, engine.num_waiting) == (0, waiting)
    engine.load(update_from(exact_model_of(shared=False), 4))
    for number, responses in run_to_the_end(engine, 5).items():
        assert all(len(response.token_versions) == 1 for response in responses), "whole responses of one version"
        if number > 2:
            assert {response.version for response in responses} == {Version(0, 4)}
