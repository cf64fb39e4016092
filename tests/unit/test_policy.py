from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_models import ARCHITECTURES, PECULIAR, VOCABULARY, WINDOWED, Lengths, answered, build, token_logprobs
from torch import Tensor
from torch.testing import assert_close
from transformers import MistralConfig, PreTrainedModel, Qwen2Config

from tba.build.learner import _checkpoint_layers
from tba.policy import layout
from tba.policy.attention import supports_shared_prompt
from tba.policy.batch import PackedTokens, collate, pack
from tba.policy.names import model_directory
from tba.policy.policy import (
    Policy,
    Reference,
    export_weights,
    import_weights,
    load_model,
    load_tokenizer,
    uses_shared_prompt,
)
from tba.testing import make_response, save_tiny_model
from tba.types import Group, Response, TbaError, Trajectory, Version

MIXED: Lengths = [(5, [3, 8, 1]), (2, [6, 6]), (9, [1])]

group_lengths = st.lists(
    st.tuples(st.integers(1, 12), st.lists(st.integers(1, 12), min_size=1, max_size=4)), min_size=1, max_size=3
)


@cache
def pair(name: str) -> tuple[PreTrainedModel, PreTrainedModel]:
    """The same weights in float64, with each prompt computed once and with the plain forward."""
    config = {**ARCHITECTURES, **WINDOWED, **PECULIAR}[name]
    return to_float64(build(config, shared=True)), to_float64(build(config, shared=False))


def with_gradients(model: PreTrainedModel, packed: PackedTokens, **settings: float) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities, and the gradients of a sum in which every token has a weight of its own."""
    model.zero_grad()
    values_T = token_logprobs(model, packed, **settings)
    (values_T * torch.linspace(-1, 1, len(values_T))).sum().backward()
    return values_T.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def one_by_one(model: PreTrainedModel, sequences: Lengths, temperature: float = 1.0) -> Tensor:
    """No batch, no padding, no packing: what `padded` itself has to agree with."""
    found = []
    for prompt, responses in answered(sequences):
        for response in responses:
            ids = torch.tensor([[*prompt.tokens, *response.tokens.tolist()]])
            logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
            start = len(prompt.tokens) - 1
            predictions = logits[start : start + len(response)].log_softmax(-1)
            found.append(predictions.gather(1, ids[0, start + 1 :].unsqueeze(1)).squeeze(1))
    return torch.cat(found)


# ---------------------------------------------------------------------------------------------------------------------
# One computation of the prompt equals many
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHITECTURES)
@given(
    sequences=group_lengths,
    temperature=st.sampled_from([1.0, 0.7, 1.6]),
    chunk_tokens=st.sampled_from([1, 3, 1024]),
    worth_a_block=st.sampled_from([1, layout.WORTH_A_BLOCK]),
    seed=st.integers(0, 99),
)
@example(sequences=MIXED, temperature=1.0, chunk_tokens=1024, worth_a_block=1, seed=0)
@example(sequences=[(12, [2, 1])], temperature=1.0, chunk_tokens=1, worth_a_block=1, seed=22)  # certain tokens
@example(
    sequences=[(4, [1, 1, 1])], temperature=0.7, chunk_tokens=1, worth_a_block=1, seed=0
)  # nothing but last tokens
@example(sequences=[(1, [1])], temperature=1.0, chunk_tokens=1024, worth_a_block=1, seed=0)
@example(
    sequences=[(3, [5, 5]), (3, [5, 5])], temperature=1.0, chunk_tokens=3, worth_a_block=1, seed=0
)  # no padding anywhere
@example(
    sequences=[(2, [1, 60]), (40, [2])], temperature=1.0, chunk_tokens=7, worth_a_block=1, seed=0
)  # padding nearly everywhere
@settings(max_examples=15, deadline=None)
@in_float64()
def test_shared_prompts_change_neither_logprobs_nor_gradients(
    name: str, sequences: Lengths, temperature: float, chunk_tokens: int, worth_a_block: int, seed: int
) -> None:
    shared, padded = pair(name)
    assert uses_shared_prompt(shared)
    assert not uses_shared_prompt(padded)
    with patch.object(layout, "WORTH_A_BLOCK", worth_a_block):
        packed = pack(answered(sequences, seed))
    assert_same_values_and_gradients(shared, padded, packed, temperature, chunk_tokens)


@pytest.mark.parametrize("name", ARCHITECTURES)
@given(seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
@in_float64()
def test_beginnings_that_responses_share_change_neither_logprobs_nor_gradients(name: str, seed: int) -> None:
    shared, padded = pair(name)
    rng = np.random.default_rng(seed)
    alike = [  # of two tokens: they begin alike, are one another's beginning, and come twice
        (prompt, [make_response(rng.integers(5, 7, rng.integers(1, 9)).tolist()) for _ in range(12)])
        for prompt, _ in answered([(4, []), (2, [])], seed)
    ]
    with patch.object(layout, "WORTH_A_BLOCK", 1):
        packed = pack(alike)
    assert packed.num_tokens < sum(len(p.tokens) + sum(len(r) - 1 for r in rs) for p, rs in alike)
    assert_same_values_and_gradients(shared, padded, packed, 0.7, 1024)


def assert_same_values_and_gradients(
    shared: PreTrainedModel, padded: PreTrainedModel, packed: PackedTokens, temperature: float, chunk_tokens: int
) -> None:
    values, gradients = with_gradients(shared, packed, temperature=temperature, chunk_tokens=chunk_tokens)
    expected_values, expected_gradients = with_gradients(padded, packed, temperature=temperature)
    assert values.dtype == torch.float64
    assert_close(values, expected_values, rtol=1e-10, atol=1e-10)
    assert gradients.keys() == expected_gradients.keys()
    # Some gradients are exactly zero (a router's bias, a key's bias), so the scale is that of all of them. Where every
    # token is certain all are nearly so, and rounding is that of the terms of size 1 which cancelled.
    scale = max(1.0, float(whole(expected_gradients).norm()))
    for parameter, gradient in gradients.items():
        assert_close(gradient, expected_gradients[parameter], rtol=0, atol=1e-10 * scale, msg=parameter)


def whole(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


@pytest.mark.parametrize("name", [*ARCHITECTURES, *WINDOWED, *PECULIAR])
@in_float64()
def test_the_padded_forward_equals_one_sequence_at_a_time(name: str) -> None:
    _, padded = pair(name)
    with torch.no_grad():
        values = token_logprobs(padded, pack(answered(MIXED)), temperature=0.7)
        assert_close(values, one_by_one(padded, MIXED, temperature=0.7), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_these_architectures_compute_a_shared_prompt_once(name: str) -> None:
    shared, _ = pair(name)
    assert supports_shared_prompt(type(shared), shared.config)


@pytest.mark.parametrize("name", WINDOWED)
def test_architectures_with_windows_or_caps_do_not_share_prompts(name: str, tmp_path: Path) -> None:
    _, plain = pair(name)
    assert not supports_shared_prompt(type(plain), plain.config)
    plain.save_pretrained(tmp_path)
    assert not uses_shared_prompt(load_model(str(tmp_path)))
    with pytest.raises(TbaError, match=r"model.attention = 'shared' does not fit .*: use 'padded' or 'auto'"):
        load_model(str(tmp_path), attention="shared")


@pytest.mark.parametrize("name", [*WINDOWED, *PECULIAR])
def test_attention_that_would_be_ignored_is_refused(name: str) -> None:
    """Some models show only when they run that they mask in a way of their own, or keep our keywords back."""
    shared, _ = pair(name)
    with pytest.raises(TbaError, match="does not fit"):
        token_logprobs(shared, pack(answered(MIXED)))


def test_a_window_that_is_not_used_does_not_count() -> None:
    model_class = type(pair("qwen2 (biases)")[0])
    assert supports_shared_prompt(model_class, Qwen2Config(use_sliding_window=False, sliding_window=32))
    assert not supports_shared_prompt(model_class, Qwen2Config(use_sliding_window=True, max_window_layers=0))
    assert supports_shared_prompt(type(pair("mistral")[0]), MistralConfig(sliding_window=None))


def test_models_train_without_dropout() -> None:
    shared, _ = pair("gpt2 (learned positions, dropout)")
    packed = pack(answered(MIXED))
    assert torch.equal(token_logprobs(shared, packed), token_logprobs(shared, packed))


# ---------------------------------------------------------------------------------------------------------------------
# Memory and precision
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    "name", [name for name in ARCHITECTURES if "deepseek" not in name]
)  # rounding picks its experts
def test_float32_is_as_close_as_its_sums_are_long(name: str, shared: bool) -> None:
    """The one comparison in the precision of training: another order of additions passes it, a coarser product fails.

    A sum of n products in float32 is off by at most n · 2⁻²⁴ of its terms' sizes, in whatever order it is made. Here n
    is 40 at most, and 15 such sums follow one another forward (seven in each of two layers: norm, query, scores,
    mixture, output, up, down; then the head), and as many backward: 40 · 30 · 2⁻²⁴ ≈ 7e-5 of the whole gradient. Being
    random, real errors stay near 1e-6; bfloat16 brings 1e-2, TF32 1e-3.
    """
    packed = pack(answered(MIXED))
    with in_float64():
        exact, exact_gradients = with_gradients(pair(name)[1], packed, temperature=0.7)
    model = build(ARCHITECTURES[name], shared=shared)
    values, gradients = with_gradients(model, packed, temperature=0.7, chunk_tokens=3)
    assert {values.dtype, *(gradient.dtype for gradient in gradients.values())} == {torch.float32}
    tolerance = 40 * 30 * 2**-24
    assert (values - exact).norm() < tolerance * exact.norm()
    assert (whole(gradients) - whole(exact_gradients)).norm() < tolerance * whole(exact_gradients).norm()


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2 (learned positions, dropout)", "gpt-neox (partly rotary, parallel)"])
@in_float64()
def test_gradient_checkpointing_changes_no_gradient(name: str, shared: bool) -> None:
    plain = to_float64(build(ARCHITECTURES[name], shared=shared))
    checkpointed = to_float64(build(ARCHITECTURES[name], shared=shared))
    _checkpoint_layers(checkpointed)
    recomputed = _count_layer_calls(checkpointed)
    packed = pack(answered(MIXED))
    values, gradients = with_gradients(plain, packed)
    checkpointed_values, checkpointed_gradients = with_gradients(checkpointed, packed)
    assert len(recomputed) == 4, "each of the two layers runs once forward and once more on the way back"
    assert_close(checkpointed_values, values, rtol=1e-10, atol=1e-10)
    assert_close(checkpointed_gradients, gradients, rtol=1e-10, atol=1e-10)


def _count_layer_calls(model: PreTrainedModel) -> list[str]:
    calls: list[str] = []
    for name, module in model.named_modules():
        if name.endswith(".mlp"):
            # Before, not after: the second run stops as soon as it has what the backward pass asked for.
            module.register_forward_pre_hook(lambda *_, name=name: calls.append(name))
    return calls


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2 (learned positions, dropout)", "phi (head with a bias)"])
def test_bfloat16_is_close(name: str, shared: bool) -> None:
    model = build(ARCHITECTURES[name], shared=shared)
    packed = pack(answered(MIXED))
    values, gradients = with_gradients(model, packed)
    rough, rough_gradients = with_gradients(model, packed, bf16=True)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, values), "nothing was computed in bfloat16"
    assert_close(rough, values, rtol=0.05, atol=0.2)
    assert torch.cosine_similarity(whole(gradients), whole(rough_gradients), dim=0) > 0.99


# ---------------------------------------------------------------------------------------------------------------------
# The reference
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 25, 10_000])
@pytest.mark.parametrize("shared", [True, False])
@in_float64()
def test_the_reference_sees_what_the_policy_sees(shared: bool, max_tokens: int) -> None:
    config = ARCHITECTURES["llama"]
    model = to_float64(build(config, shared=shared))
    reference = Reference(Policy(model, temperature=0.7, chunk_tokens=4), max_tokens=max_tokens)
    sequences = answered(MIXED)
    found = reference.token_logprobs(sequences)
    assert [[len(r) for r in row] for row in found] == [[len(r) for r in responses] for _, responses in sequences]
    with torch.no_grad():
        expected = token_logprobs(pair("llama")[1], pack(sequences), temperature=0.7)
    assert_close(torch.from_numpy(np.concatenate([r for row in found for r in row])), expected, rtol=1e-10, atol=1e-10)


def test_a_reference_leaves_a_model_that_others_train_as_it_is() -> None:
    model = build(ARCHITECTURES["llama"], shared=True)
    Reference(Policy(model), max_tokens=100).token_logprobs(answered(MIXED))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@in_float64()
def test_a_reference_is_made_one_for_the_time_of_its_passes() -> None:
    """A model that others use too: here it has the layers of another one meanwhile."""
    shared, other = (to_float64(build(ARCHITECTURES["llama"], shared=True, seed=seed)) for seed in (0, 1))
    asked = answered(MIXED)

    @contextmanager
    def exchanged() -> Iterator[None]:
        own = dict(shared.named_children())
        for name, child in other.named_children():
            setattr(shared, name, child)
        yield
        for name, child in own.items():
            setattr(shared, name, child)

    def flat(reference: Reference) -> list[float]:
        return np.concatenate([r for row in reference.token_logprobs(asked) for r in row]).tolist()

    before = flat(Reference(Policy(shared), max_tokens=100))
    borrowed = flat(Reference(Policy(shared), max_tokens=100, as_reference=exchanged))
    assert borrowed == flat(Reference(Policy(other), max_tokens=100)) != before
    assert flat(Reference(Policy(shared), max_tokens=100)) == before


# ---------------------------------------------------------------------------------------------------------------------
# Weights
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama, tied", "gpt2 (learned positions, dropout)"])
def test_published_weights_make_the_same_model(name: str) -> None:
    source, target = build(ARCHITECTURES[name], shared=True, seed=1), build(ARCHITECTURES[name], shared=True, seed=2)
    packed = pack(answered(MIXED))
    assert not torch.equal(token_logprobs(source, packed), token_logprobs(target, packed))
    import_weights(target, {name: tensor.copy() for name, tensor in export_weights(source).items()})
    assert torch.equal(token_logprobs(source, packed), token_logprobs(target, packed))


def test_a_tied_head_travels_once() -> None:
    tied, untied = (build(ARCHITECTURES[name], shared=True) for name in ("llama, tied", "llama"))
    head = VOCABULARY * 32 * 4
    assert sum(map(len, export_weights(untied).values())) - sum(map(len, export_weights(tied).values())) == head


def test_only_trainable_weights_travel() -> None:
    model = build(ARCHITECTURES["llama"], shared=True)
    model.get_input_embeddings().requires_grad_(False)
    exported = export_weights(model)
    assert "model.embed_tokens.weight" not in exported
    import_weights(build(ARCHITECTURES["llama"], shared=True, seed=3), exported)


def test_a_reader_that_keeps_bfloat16_rounds_what_is_published() -> None:
    source = build(ARCHITECTURES["llama"], shared=True, seed=1)
    target = build(ARCHITECTURES["llama"], shared=True, seed=2).to(torch.bfloat16)
    import_weights(target, export_weights(source))
    for (name, parameter), kept in zip(source.named_parameters(), target.parameters(), strict=True):
        assert torch.equal(kept, parameter.to(torch.bfloat16)), name


def test_weights_of_another_model_are_refused() -> None:
    exported = export_weights(build(ARCHITECTURES["llama"], shared=True))
    with pytest.raises(ValueError, match="published weights do not fit the model"):
        import_weights(build(ARCHITECTURES["gpt2 (learned positions, dropout)"], shared=True), exported)


# ---------------------------------------------------------------------------------------------------------------------
# Loading
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def test_a_model_is_loaded_for_evaluation_in_float32(tiny: Path, tmp_path: Path) -> None:
    load_model(str(tiny)).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load_model(str(tmp_path))
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_model_that_is_kept_in_bfloat16_has_the_same_angles(tiny: Path) -> None:
    """What rotary embeddings multiply positions by stays float32: rounded, far positions would be elsewhere."""
    whole, half = load_model(str(tiny)), load_model(str(tiny), dtype="bfloat16")
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    buffers = dict(whole.named_buffers())
    assert buffers
    assert all(torch.equal(buffers[name], buffer) for name, buffer in half.named_buffers())


@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_a_reference_in_bfloat16_gives_float32_that_is_a_little_off(tiny: Path, attention: str) -> None:
    asked = answered(MIXED)
    views = [
        Reference(Policy(load_model(str(tiny), attention=attention, dtype=dtype)), max_tokens=100).token_logprobs(asked)
        for dtype in ("float32", "bfloat16")
    ]
    whole, half = (np.concatenate([r for row in view for r in row]) for view in views)
    assert half.dtype == np.float32
    assert 0 < np.abs(whole - half).mean() < 0.05


@pytest.mark.parametrize(("attention", "shared"), [("auto", True), ("shared", True), ("padded", False)])
def test_attention_is_chosen_by_the_setting(tiny: Path, attention: str, shared: bool) -> None:
    assert uses_shared_prompt(load_model(str(tiny), attention=attention)) is shared


def test_the_embedded_model_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(model_directory("arithmetic")).parts[-3:] == ("tba", "models", "arithmetic")
    assert model_directory("owner/model") == "owner/model"
    (tmp_path / "arithmetic").mkdir()
    assert model_directory("arithmetic") == "arithmetic", "a folder of that name in front of the user is meant"


def _break_nothing_there(path: Path) -> None:
    pass


def _break_empty(path: Path) -> None:
    path.mkdir()


def _break_config(path: Path) -> None:
    save_tiny_model(path)
    (path / "config.json").write_text("{", "utf-8")


def _break_kind(path: Path) -> None:
    save_tiny_model(path)
    (path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}), "utf-8")


def _break_no_weights(path: Path) -> None:
    save_tiny_model(path)
    (path / "model.safetensors").unlink()


def _break_torn_weights(path: Path) -> None:
    save_tiny_model(path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])


@pytest.mark.parametrize(
    "damage",
    [_break_nothing_there, _break_empty, _break_config, _break_kind, _break_no_weights, _break_torn_weights],
)
def test_a_model_that_cannot_be_loaded_is_told_in_one_line(damage: object, tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert callable(damage)
    damage(path)
    with pytest.raises(TbaError) as caught:
        load_model(str(path))
    message = str(caught.value)
    assert message.startswith(f"model {str(path)!r} cannot be loaded: ")
    assert "\n" not in message


def test_a_missing_tokenizer_is_told_in_one_line(tiny: Path, tmp_path: Path) -> None:
    load_model(str(tiny)).save_pretrained(tmp_path)
    with pytest.raises(TbaError, match="no tokenizer for model") as caught:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_code_in_a_model_folder_is_not_run_unless_allowed(tiny: Path, tmp_path: Path) -> None:
    load_model(str(tiny)).save_pretrained(tmp_path)
    ran = tmp_path / "ran"
    (tmp_path / "code.py").write_text(
        f"from pathlib import Path\nPath({str(ran)!r}).touch()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class TheirConfig(LlamaConfig):\n    model_type = 'theirs'\n"
        "class TheirModel(LlamaForCausalLM):\n    config_class = TheirConfig\n",
        "utf-8",
    )
    settings = json.loads((tmp_path / "config.json").read_text("utf-8"))
    settings |= {"model_type": "theirs"}
    settings["auto_map"] = {"AutoConfig": "code.TheirConfig", "AutoModelForCausalLM": "code.TheirModel"}
    (tmp_path / "config.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(TbaError, match="cannot be loaded"):
        load_model(str(tmp_path))
    assert not ran.exists()


@in_float64()
def test_copies_of_a_response_are_computed_once_and_count_each_time() -> None:
    """Loss and gradient of a group with copies are those of every copy computed on its own."""
    model = to_float64(build(ARCHITECTURES["llama"], shared=True))
    [(prompt, [one, two, three])] = answered([(5, [6, 2, 4])])
    row = [one, two, one, three, two, one]
    trajectories = tuple(Trajectory(r, float(i), (), r.token_logprobs) for i, r in enumerate(row))
    batch = collate([Group(prompt, trajectories)], max_tokens=1_000)
    [part] = batch.parts
    assert len(part.responses) == 3
    weights_GK = torch.tensor([[1.0, -2.0, 3.0, 0.5, 4.0, -1.5]])

    def sums(values_J: Tensor, trajectory_J: Tensor) -> Tensor:
        return values_J.new_zeros(1, len(row)).index_add(1, trajectory_J, values_J.unsqueeze(0))

    def gradient(loss: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(loss, list(model.parameters())))

    once_GK = sums(token_logprobs(model, part)[batch.token_J], batch.trajectory_J)
    separately = pack([(prompt, row)])
    each_GK = sums(token_logprobs(model, separately), torch.repeat_interleave(torch.tensor([*map(len, row)])))
    assert_close(once_GK, each_GK, rtol=1e-10, atol=1e-10)
    gradients = [gradient((weights_GK * sums_GK).sum()) for sums_GK in (once_GK, each_GK)]
    assert_close(*gradients, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------------------------------------------
# Text that the policy did not write
# ---------------------------------------------------------------------------------------------------------------------


def partly_written(responses: Sequence[Response], seed: int) -> list[Response]:
    """The same tokens, of which others wrote some; at least one is the policy's own."""
    rng = np.random.default_rng(seed)
    found = []
    for response in responses:
        own = rng.random(len(response)) < 0.6
        own[rng.integers(len(response))] = True
        versions = tuple((Version(0, 0) if is_own else None, 1) for is_own in own.tolist())
        found.append(replace(response, token_versions=versions, token_logprobs=response.token_logprobs * own))
    return found


@pytest.mark.parametrize("shared", [True, False])
@given(sequences=group_lengths, seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
@in_float64()
def test_what_others_wrote_is_read_and_not_predicted(shared: bool, sequences: Lengths, seed: int) -> None:
    """The policy's tokens have the log-probabilities that they have in the whole text, and the others have none."""
    model = pair("llama")[0 if shared else 1]
    all_own = answered(sequences, seed)
    mixed = [(prompt, partly_written(responses, seed)) for prompt, responses in all_own]
    written = torch.from_numpy(np.concatenate([r.written for _, responses in mixed for r in responses]))
    with torch.no_grad():
        whole_T = token_logprobs(model, pack(all_own))
        packed = pack(mixed)
        assert_close(token_logprobs(model, packed), whole_T[written], rtol=1e-10, atol=1e-10)
    assert len(packed.target_E) <= int(written.sum())
    found = Reference(Policy(model), max_tokens=30).token_logprobs(mixed)
    flat = torch.from_numpy(np.concatenate([r for row in found for r in row]))
    assert_close(flat, torch.where(written, whole_T, 0.0), rtol=1e-10, atol=1e-10)
    model.requires_grad_(True)


def test_equal_texts_that_different_hands_wrote_are_two_responses() -> None:
    [(prompt, [response])] = answered([(3, [4])])
    others = replace(response, token_versions=((Version(0, 0), 2), (None, 1), (Version(0, 0), 1)))
    trajectories = tuple(Trajectory(r, 0.0, (), r.token_logprobs) for r in (response, others, response))
    batch = collate([Group(prompt, trajectories)], 1_000)
    [part] = batch.parts
    assert len(part.responses) == 2
    assert batch.length_GK.tolist() == [[4, 3, 4]]
    assert batch.position_J.tolist() == [0, 1, 2, 3, 0, 1, 3, 0, 1, 2, 3]
    assert part.targets[batch.token_J].tolist() == [*response.tokens, *response.tokens[[0, 1, 3]], *response.tokens]
    assert len(part.predictor_E) == 4, "what both have in common is computed once"
