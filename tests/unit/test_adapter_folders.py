"""What is saved of a model with adapters: a folder that peft loads, and a merged model from layers that are packed."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from float64 import in_float64, to_float64
from test_lora import adapted, moved, packed
from tiny_models import ARCHITECTURES, build, token_logprobs
from torch.testing import assert_close

from tba.engines.packed_linear import PackedLayers
from tba.policy.lora import adapter_tensors, save_adapter, save_evaluated, save_merged
from tba.policy.policy import load_model
from tba.testing import save_tiny_model

peft = pytest.importorskip("peft")
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

NAMES = [name for name in ARCHITECTURES if name.startswith(("llama", "gpt2"))]


@pytest.mark.parametrize("name", NAMES)
@in_float64()
def test_peft_loads_the_adapter_on_top_of_the_base_model(name: str, tmp_path: Path) -> None:
    base = to_float64(build(ARCHITECTURES[name], shared=False))
    base.save_pretrained(tmp_path / "base")
    model = to_float64(moved(adapted(deepcopy(base))))
    model.name_or_path = str(tmp_path / "base")
    save_adapter(model, tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(deepcopy(base), tmp_path / "adapter")
    ids = torch.arange(3, 11)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert (expected - base(ids).logits).abs().max() > 0.01
        assert_close(loaded(ids).logits, expected, rtol=0, atol=1e-10)


def test_the_folder_is_a_usual_one(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "base")
    model = moved(adapted(load_model(str(folder))))
    save_adapter(model, tmp_path / "adapter")
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folder)
    assert (config["peft_type"], config["task_type"], config["r"], config["lora_alpha"]) == ("LORA", "CAUSAL_LM", 3, 6)
    tensors = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert len(tensors) == len(adapter_tensors(model))
    assert all(name.startswith("base_model.model.") and ".default." not in name for name in tensors)


@pytest.mark.parametrize("with_adapters", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_an_engine_holds_is_saved_as_the_learner_would(
    name: str, with_adapters: bool, tmp_path: Path
) -> None:
    model = build(ARCHITECTURES[name], shared=False)
    if with_adapters:
        model = moved(adapted(model))
    save_merged(model, tmp_path / "learner")
    PackedLayers(model, "float32")
    save_evaluated(model, tmp_path / "engine")
    one, other = (load_file(tmp_path / who / "model.safetensors") for who in ("learner", "engine"))
    assert one.keys() == other.keys()
    for key in one:
        assert_close(one[key], other[key], rtol=0, atol=1e-6)
    assert json.loads((tmp_path / "engine/config.json").read_text()) == json.loads(
        (tmp_path / "learner/config.json").read_text()
    )
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "engine")
    with torch.no_grad():
        assert_close(token_logprobs(loaded, packed()), token_logprobs(model, packed()), rtol=0, atol=1e-3)
