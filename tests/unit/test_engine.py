from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from buffer_cases import assert_frequencies
from float64 import in_float64, to_float64
from tiny_models import ARCHITECTURES, EOS, FLOAT32, REPEATING, VOCABULARY, WINDOWED, answered, build, token_logprobs
from torch import Tensor
from torch.testing import assert_close
from transformers import PreTrainedModel

from tba.engines import bands, decoders, prompt_keys
from tba.engines.base import Request, generate
from tba.engines.branches import Ints
from tba.engines.packed_linear import Precision
from tba.engines.stops import stop_tokens
from tba.engines.transformers import TransformersEngine
from tba.policy.batch import pack
from tba.policy.policy import export_weights
from tba.testing import character_tokenizer
from tba.types import NEVER_PUBLISHED, Prompt, Response, TbaError, Version, WeightUpdate

TOKENIZER = character_tokenizer("abcdefghijklmnopqrstu")  # with its three special tokens, as many as the models know
assert len(TOKENIZER) == VOCABULARY
assert TOKENIZER.eos_token_id == EOS

PROMPTS = [prompt for prompt, _ in answered([(4, []), (1, []), (11, []), (4, [])], seed=5)]
LIMIT = 12
DECODERS = {"shared": True, "cached": False}


def model_of(name: str = "llama", *, shared: bool = True, seed: int = 0) -> PreTrainedModel:
    return build({**ARCHITECTURES, **WINDOWED}[name], shared=shared, seed=seed)


def exact_model_of(name: str = "llama", *, shared: bool = True) -> PreTrainedModel:
    return to_float64(model_of(name, shared=shared))


def engine_of(
    model: PreTrainedModel,
    *,
    temperature: float = 1.0,
    limit: int = LIMIT,
    seed: int = 0,
    precision: Precision = "float32",
) -> TransformersEngine:
    return TransformersEngine(
        model, TOKENIZER, temperature=temperature, max_new_tokens=limit, seed=seed, precision=precision
    )


def flat(groups: Sequence[Sequence[Response]]) -> list[Response]:
    return [response for group in groups for response in group]


def token_lists(groups: Sequence[Sequence[Response]]) -> list[list[int]]:
    return [response.tokens.tolist() for response in flat(groups)]


def recorded_and_fresh(
    model: PreTrainedModel, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]], temperature: float
) -> tuple[Tensor, Tensor]:
    """What the engine says of its tokens, and what the policy does."""
    with torch.no_grad():
        fresh_T = token_logprobs(model, pack(list(zip(prompts, groups, strict=True))), temperature=temperature)
    recorded = np.concatenate([response.token_logprobs for response in flat(groups)])
    return torch.from_numpy(recorded).to(fresh_T.dtype), fresh_T


def assert_logprobs_are_those_of(
    model: PreTrainedModel, prompts: Sequence[Prompt], groups: Sequence[Sequence[Response]], temperature: float
) -> None:
    """In float64 that is; what is recorded is kept in float32."""
    assert_close(*recorded_and_fresh(model, prompts, groups, temperature), rtol=1e-6, atol=1e-10)


def errors(groups: Sequence[Sequence[Response]]) -> Tensor:
    """How far recorded log-probabilities are from those of the plain model, at temperature 1."""
    recorded_T, fresh_T = recorded_and_fresh(model_of(shared=False), PROMPTS, groups, 1.0)
    return recorded_T - fresh_T


def root_mean_square(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


# ---------------------------------------------------------------------------------------------------------------------
# What is returned
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("name", ARCHITECTURES)
@in_float64()
def test_recorded_logprobs_are_those_of_the_policy(name: str, shared: bool, temperature: float) -> None:
    model = exact_model_of(name, shared=shared)
    model.generation_config.eos_token_id = list(range(EOS, 9))  # so that rows end, and leave, at different times
    groups = generate(engine_of(model, temperature=temperature), PROMPTS, 5)
    assert [len(group) for group in groups] == [5, 5, 5, 5]
    assert len({len(response) for response in flat(groups)}) > 2
    assert_logprobs_are_those_of(exact_model_of(name, shared=False), PROMPTS, groups, temperature)


@pytest.mark.parametrize("name", WINDOWED)
@in_float64()
def test_recorded_logprobs_are_right_beyond_a_window(name: str) -> None:
    model = exact_model_of(name, shared=False)
    groups = generate(engine_of(model, temperature=0.8), PROMPTS, 5)
    assert max(map(len, flat(groups))) > 4, "longer than the window"
    assert_logprobs_are_those_of(model, PROMPTS, groups, 0.8)


@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_bfloat16_logprobs_are_close(shared: bool) -> None:
    engine = engine_of(model_of(shared=shared), precision="bfloat16")
    groups = generate(engine, PROMPTS, 5)
    # Fifteen products in sequence, each rounded to 2⁻⁹ of numbers up to 8: √15 · 8 · 2⁻⁹ if no two errors agree.
    assert FLOAT32 < root_mean_square(errors(groups)) < 15**0.5 * 8 * 2**-9
    published = generate(engine, PROMPTS, 5, full_precision=True)
    assert errors(published).abs().max() < FLOAT32


@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_an_int8_copy_continues_prompts_that_were_read_in_full_precision(shared: bool) -> None:
    engine = engine_of(model_of(shared=shared), precision="int8")
    groups = generate(engine, PROMPTS, 5)
    off_T = errors(groups)
    firsts = np.cumsum([0, *(len(response) for response in flat(groups)[:-1])])
    assert off_T[firsts].abs().max() < FLOAT32, "the first token depends on the prompt alone"
    # Activations have 7 bits: a step is 2⁻⁶ of the largest, an error a third of a step, four times that of bfloat16.
    assert 100 * FLOAT32 < root_mean_square(off_T) < 4 * 15**0.5 * 8 * 2**-9
    published = generate(engine, PROMPTS, 5, full_precision=True)
    assert errors(published).abs().max() < FLOAT32


@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_a_response_ends_with_its_first_end_of_sequence(shared: bool) -> None:
    responses = flat(generate(engine_of(model_of(shared=shared)), PROMPTS, 20))
    for response in responses:
        assert response.finished == (response.tokens[-1] == EOS)
        assert EOS not in response.tokens[:-1]
        assert len(response) == len(response.token_logprobs) <= LIMIT
        assert response.token_versions == ((NEVER_PUBLISHED, len(response)),)
        assert response.text == TOKENIZER.decode(response.tokens.tolist(), skip_special_tokens=True)
        assert "<eos>" not in response.text
        assert response.finished or len(response) == LIMIT
    assert {response.finished for response in responses} == {True, False}
    assert any(response.finished and len(response) == 1 for response in responses)


def test_a_limit_of_one_token_is_a_response_of_one_token() -> None:
    responses = flat(generate(engine_of(model_of(), limit=1), PROMPTS, 20))
    assert {len(response) for response in responses} == {1}
    assert {response.finished for response in responses} == {True, False}


def test_stop_tokens_are_those_of_tokenizer_and_generation_config() -> None:
    model = model_of()
    model.generation_config.eos_token_id = [EOS, 5]
    assert stop_tokens(model, TOKENIZER) == {EOS, 5}
    model.generation_config.eos_token_id = 6
    assert stop_tokens(model, TOKENIZER) == {EOS, 6}
    responses = flat(generate(engine_of(model), PROMPTS, 20))
    assert {int(response.tokens[-1]) for response in responses if response.finished} == {EOS, 6}
    assert not any({EOS, 6} & set(response.tokens[:-1].tolist()) for response in responses)


def test_a_model_that_never_stops_is_cut() -> None:
    model = model_of()
    model.generation_config.eos_token_id = None
    tokenizer = character_tokenizer("abcdefghijklmnopqrstu")
    tokenizer.eos_token = None
    engine = TransformersEngine(model, tokenizer, temperature=1.0, max_new_tokens=LIMIT, seed=0)
    responses = flat(generate(engine, PROMPTS, 3))
    assert {(len(response), response.finished) for response in responses} == {(LIMIT, False)}


def test_a_model_whose_layers_repeat_is_refused() -> None:
    with pytest.raises(TbaError, match="does not fit"):
        generate(engine_of(build(REPEATING, shared=True)), PROMPTS, 2)


# ---------------------------------------------------------------------------------------------------------------------
# Choice of tokens
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2 (learned positions, dropout)", "gpt-neox (partly rotary, parallel)"])
@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
@in_float64()
def test_greedy_is_what_transformers_generates(name: str, shared: bool) -> None:
    groups = generate(engine_of(exact_model_of(name, shared=shared)), PROMPTS, 1, greedy=True)
    theirs = exact_model_of(name, shared=False)
    for prompt, tokens in zip(PROMPTS, token_lists(groups), strict=True):
        ids = torch.tensor([prompt.tokens])
        output = theirs.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LIMIT)
        assert tokens == output[0, len(prompt.tokens) :].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_first_tokens_have_the_frequencies_of_the_softmax(shared: bool, temperature: float) -> None:
    model = model_of(shared=shared)
    prompt = PROMPTS[0]
    responses = flat(generate(engine_of(model, temperature=temperature, limit=1), [prompt], 20_000))
    with torch.no_grad():
        logits = model_of(shared=False)(input_ids=torch.tensor([prompt.tokens])).logits[0, -1]
    exact = (logits.double() / temperature).softmax(-1)
    counts = np.bincount([int(response.tokens[0]) for response in responses], minlength=VOCABULARY)
    assert_frequencies(dict(enumerate(counts.tolist())), dict(enumerate((exact / exact.sum()).tolist())))


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_coarse_copy_draws_from_the_density_that_it_records(precision: Precision) -> None:
    """Of the tokens that follow the most frequent first one: how often each came, and how likely it was said to be."""
    responses = flat(generate(engine_of(model_of(), limit=2, precision=precision), PROMPTS[:1], 20_000))
    [(first, _)] = Counter(int(response.tokens[0]) for response in responses).most_common(1)
    followed = [r for r in responses if len(r) == 2 and r.tokens[0] == first]
    density: dict[int, float] = {}
    for response in followed:
        said = float(np.exp(response.token_logprobs[1]))
        assert density.setdefault(int(response.tokens[1]), said) == said
    never = 1.0 - sum(density.values())
    assert -1e-5 < never < 0.01
    counts = Counter(int(response.tokens[1]) for response in followed)
    assert_frequencies({**counts}, {token: said / sum(density.values()) for token, said in density.items()})


def test_the_seed_makes_the_responses() -> None:
    first, again, other = (token_lists(generate(engine_of(model_of(), seed=s), PROMPTS, 4)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_restored_engine_continues_the_same_stream() -> None:
    engine = engine_of(model_of(), seed=1)
    generate(engine, PROMPTS, 4)
    state = engine.state()
    expected = [token_lists(generate(engine, PROMPTS, 4)) for _ in range(2)]
    restored = engine_of(model_of(), seed=99)
    restored.restore(state)
    assert [token_lists(generate(restored, PROMPTS, 4)) for _ in range(2)] == expected
    assert expected[0] != expected[1]


# ---------------------------------------------------------------------------------------------------------------------
# Slots that part and leave
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of slots that decoders were brought to."""
    numbers: list[int] = []
    for decoder in (decoders.SharedPromptDecoder, decoders.CachedDecoder):

        def counted(self: Any, token_R: Ints, *others: Any, original: Any = decoder.step) -> Tensor:
            numbers.append(len(token_R))
            stepped: Tensor = original(self, token_R, *others)
            return stepped

        monkeypatch.setattr(decoder, "step", counted)
    return numbers


@pytest.mark.parametrize("drop_below", [0.0, 1.0], ids=["prompts stay", "prompts leave"])
@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("llama", True),
        ("llama", False),
        ("deepseek-v3 (keys longer than values)", True),
        ("gemma3", False),
    ],
)
@in_float64()
def test_slots_that_part_and_leave_keep_to_their_own_tokens(
    name: str,
    shared: bool,
    drop_below: float,
    slots: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_keys, "REBUILD_BELOW", drop_below)
    monkeypatch.setattr(bands, "BLOCK", 5)  # so that room is added on the way, twice
    model = exact_model_of(name, shared=shared)
    # Cool enough for responses to run together for a while, warm enough for them to part.
    for temperature, count in ((0.3, 6), (1.3, 6), (1.3, 1)):
        sampled = generate(engine_of(model, temperature=temperature), PROMPTS, count)
        # A mistaken slot would go on from another's tokens, and its log-probabilities would not be those of its own.
        assert_logprobs_are_those_of(exact_model_of(name, shared=False), PROMPTS, sampled, temperature)
    assert len(set(slots)) > 3, "slots parted and left"


def test_what_responses_have_in_common_is_computed_once(slots: list[int]) -> None:
    groups = generate(engine_of(model_of(), temperature=0.05), PROMPTS, 50)
    distinct = [len({tuple(tokens) for tokens in token_lists([group])}) for group in groups]
    assert 1 < max(distinct) < 25
    assert max(slots) <= sum(distinct)


# ---------------------------------------------------------------------------------------------------------------------
# Weights in flight
# ---------------------------------------------------------------------------------------------------------------------


def update_from(model: PreTrainedModel, step: int) -> WeightUpdate:
    return WeightUpdate(Version(0, step), {name: tensor.copy() for name, tensor in export_weights(model).items()})


def generate_with_loads(
    engine: TransformersEngine, num_responses: int, updates: dict[int, WeightUpdate]
) -> list[list[Response]]:
    """Responses to the prompts, with an update loaded after these numbers of steps."""
    for number, prompt in enumerate(PROMPTS):
        engine.submit(Request(number, prompt, num_responses))
    found: dict[int, list[Response]] = {}
    for step in range(LIMIT):
        if step in updates:
            engine.load(updates[step])
        found |= {done.id: done.responses for done in engine.collect(1_000)}
    return [found[number] for number in range(len(PROMPTS))]


@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_tokens_carry_the_version_that_made_them(shared: bool) -> None:
    new = model_of(shared=shared, seed=1)
    engine = engine_of(model_of(shared=shared))
    groups = generate_with_loads(engine, 6, {3: update_from(new, 7), 6: update_from(new, 9)})
    old = generate(engine_of(model_of(shared=shared)), PROMPTS, 6)
    assert engine.version == Version(0, 9)
    expected_runs = ((NEVER_PUBLISHED, 3), (Version(0, 7), 3), (Version(0, 9), LIMIT - 6))
    for response, before in zip(flat(groups), flat(old), strict=True):
        assert sum(count for _, count in response.token_versions) == len(response)
        assert response.version == NEVER_PUBLISHED
        # The runs of a response are those of a full one, cut where it ended.
        assert _cut(expected_runs, len(response)) == response.token_versions
        assert response.tokens[:3].tolist() == before.tokens[:3].tolist()
        assert response.token_logprobs[:3].tolist() == before.token_logprobs[:3].tolist()
    assert any(len(response) == LIMIT for response in flat(groups))
    assert token_lists(groups) != token_lists(old)


def _cut(runs: Sequence[tuple[Version, int]], length: int) -> tuple[tuple[Version, int], ...]:
    expanded = [version for version, count in runs for _ in range(count)][:length]
    return tuple((version, expanded.count(version)) for version in dict.fromkeys(expanded))


@pytest.mark.parametrize("shared", DECODERS.values(), ids=DECODERS)
def test_loaded_weights_are_sampled_from(shared: bool) -> None:
    new = model_of(shared=shared, seed=1)
    engine = engine_of(model_of(shared=shared))
    assert engine.version == NEVER_PUBLISHED
    engine.load(update_from(new, 3))
    groups = generate(engine, PROMPTS, 4)
    assert {response.token_versions for response in flat(groups)} == {((Version(0, 3), len(r)),) for r in flat(groups)}
    assert token_lists(groups) == token_lists(generate(engine_of(new), PROMPTS, 4))
