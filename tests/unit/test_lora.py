"""Adapters: nothing at first, the only thing trained, and gone from what others load."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from float64 import in_float64, to_float64
from tiny_models import ARCHITECTURES, FLOAT32, answered, build, token_logprobs
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, PreTrainedModel

from tba.engines import packed_linear
from tba.engines.base import generate
from tba.engines.transformers import TransformersEngine
from tba.policy.batch import PackedTokens, pack
from tba.policy.lora import adapter_tensors, add_adapters, merged, restore_adapters, save_merged
from tba.policy.policy import export_weights, import_weights, load_model, load_tokenizer
from tba.testing import save_tiny_model
from tba.types import Prompt, TbaError, Version, WeightUpdate

pytest.importorskip("peft")

LENGTHS = [(5, [4, 7, 1]), (3, [2, 6])]
NAMES = [name for name in ARCHITECTURES if "deepseek" not in name]  # its experts are one tensor, not linear layers


def packed() -> PackedTokens:
    return pack(answered(LENGTHS))


def adapted(model: PreTrainedModel, *, seed: int = 0, targets: tuple[str, ...] = ("all-linear",)) -> PreTrainedModel:
    add_adapters(model, rank=3, alpha=6.0, targets=targets, seed=seed)
    return model


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """With adapters far enough from nothing that leaving one out would show."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", NAMES)
@in_float64()
def test_new_adapters_change_nothing(name: str, shared: bool) -> None:
    base = to_float64(build(ARCHITECTURES[name], shared=shared))
    with torch.no_grad():
        before = token_logprobs(base, packed())
        assert_close(token_logprobs(to_float64(adapted(base)), packed()), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", NAMES)
@in_float64()
def test_a_merged_model_is_the_adapted_one(name: str, shared: bool) -> None:
    base = to_float64(build(ARCHITECTURES[name], shared=shared))
    model = to_float64(moved(adapted(deepcopy(base))))
    with torch.no_grad():
        with_adapters = token_logprobs(model, packed())
        assert (with_adapters - token_logprobs(base, packed())).abs().max() > 0.05
        assert_close(token_logprobs(merged(model), packed()), with_adapters, rtol=0, atol=1e-10)
        assert torch.equal(token_logprobs(model, packed()), with_adapters), "merging left the model as it was"


@pytest.mark.parametrize("checkpointing", [True, False])
def test_only_adapters_get_a_gradient(tmp_path: Path, checkpointing: bool) -> None:
    from tba.build.learner import _checkpoint_layers

    model = moved(adapted(load_model(str(save_tiny_model(tmp_path)))))
    if checkpointing:
        _checkpoint_layers(model)
    token_logprobs(model, packed()).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.requires_grad == ("lora_" in name)
        assert (parameter.grad is not None and bool(parameter.grad.any())) == ("lora_" in name), name


def test_adapters_travel_alone(tmp_path: Path) -> None:
    """Another process has its own base and adapters of another beginning: what is published makes them equal."""
    folder = str(save_tiny_model(tmp_path))
    here, there = moved(adapted(load_model(folder))), adapted(load_model(folder), seed=9)
    tensors = export_weights(here)
    assert tensors
    assert all("lora_" in name for name in tensors)
    import_weights(there, tensors)
    with torch.no_grad():
        assert torch.equal(token_logprobs(here, packed()), token_logprobs(there, packed()))


def test_an_engine_samples_from_the_adapters_it_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers are packed, base and adapters alike: a stale copy of either would show."""
    monkeypatch.setattr(packed_linear, "SMALL", 0)
    folder = str(save_tiny_model(tmp_path))
    trained, own = moved(adapted(load_model(folder))), adapted(load_model(folder), seed=9)
    engine = TransformersEngine(own, load_tokenizer(folder), temperature=0.7, max_new_tokens=8, seed=0)
    engine.load(WeightUpdate(Version(0, 3), export_weights(trained)))
    prompts = [Prompt("a", "", (5, 6, 7)), Prompt("b", "", (8, 9))]
    responses = generate(engine, prompts, 4)
    sampled_T = torch.cat([torch.from_numpy(r.token_logprobs) for row in responses for r in row])
    answered_so = pack(list(zip(prompts, responses, strict=True)))
    with torch.no_grad():
        trained_T = token_logprobs(trained, answered_so, temperature=0.7)
        base_T = token_logprobs(load_model(folder), answered_so, temperature=0.7)
    assert_close(sampled_T, trained_T, rtol=0, atol=FLOAT32)
    assert (sampled_T - base_T).abs().max() > 0.05


@in_float64()
def test_what_is_saved_loads_with_plain_transformers(tmp_path: Path) -> None:
    model = to_float64(moved(adapted(load_model(str(save_tiny_model(tmp_path / "base"))))))
    save_merged(model, tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    loaded, report = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        expected = token_logprobs(model, packed())
        assert_close(token_logprobs(loaded.eval(), packed()), expected, rtol=0, atol=1e-10)


def test_adapters_are_restored_to_the_bit(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path))
    model, other = moved(adapted(load_model(folder))), adapted(load_model(folder))
    restore_adapters(other, {name: tensor.clone() for name, tensor in adapter_tensors(model).items()})
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    plain = load_model(folder)
    assert adapter_tensors(plain) == {}
    restore_adapters(plain, {})


def test_the_seed_alone_decides_how_adapters_begin(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path))
    torch.manual_seed(1)
    one = adapter_tensors(adapted(load_model(folder), seed=5))
    after_one = torch.rand(1)
    torch.manual_seed(2)
    two = adapter_tensors(adapted(load_model(folder), seed=5))
    assert all(torch.equal(one[name], two[name]) for name in one)
    torch.manual_seed(1)
    assert torch.equal(after_one, torch.rand(1)), "and the global generator does not notice"


def test_targets_are_chosen_by_name(tmp_path: Path) -> None:
    model = adapted(load_model(str(save_tiny_model(tmp_path))), targets=("q_proj", "v_proj"))
    assert {name.split(".")[-4] for name in adapter_tensors(model)} == {"q_proj", "v_proj"}


@pytest.mark.parametrize("targets", [("no_such_layer",), ("lm_head",), ("q_proj", "embed_tokens")])
def test_targets_that_do_not_fit_are_told(tmp_path: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(TbaError, match=r"model\.lora_targets") as caught:
        adapted(load_model(str(save_tiny_model(tmp_path))), targets=targets)
    assert "\n" not in str(caught.value)


def test_the_extra_is_named_where_peft_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model(str(save_tiny_model(tmp_path)))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(TbaError, match=r"trajectory-balance\[lora\]"):
        adapted(model)
