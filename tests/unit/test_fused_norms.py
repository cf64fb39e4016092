"""Fused norms against those they replace."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ARCHITECTURES, build
from torch import nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Gemma3TextConfig

from tba.engines.fused_norms import fuse_norms
from tba.policy import export_weights, import_weights

IDS = torch.tensor([[3, 4, 5, 6]])


def num_fused(model: nn.Module) -> int:
    return sum(isinstance(module, nn.RMSNorm) for module in model.modules())


@pytest.mark.parametrize(
    "name", ["llama", "qwen3 (norms on queries and keys)", "deepseek-v3 (keys longer than values)"]
)
def test_a_model_computes_the_same_and_takes_published_weights(name: str) -> None:
    model, other = (build(ARCHITECTURES[name], shared=False, seed=seed) for seed in (0, 1))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # norms start as ones, which would prove little
    names = [name for name, _ in model.named_parameters()]
    fuse_norms(model)
    assert num_fused(model) >= 5  # two in each of two layers, and the last
    assert [name for name, _ in model.named_parameters()] == names
    import_weights(model, export_weights(other))
    with torch.inference_mode():
        assert_close(model(input_ids=IDS).logits, other(input_ids=IDS).logits, rtol=1e-4, atol=1e-5)


def test_norms_of_another_kind_stay() -> None:
    layer_norms = build(ARCHITECTURES["gpt2 (learned positions, dropout)"], shared=False, seed=0)
    config = Gemma3TextConfig(vocab_size=24, hidden_size=32, intermediate_size=40, num_hidden_layers=2, head_dim=8)
    one_plus_weight = AutoModelForCausalLM.from_config(config)
    for model in (layer_norms, one_plus_weight):
        fuse_norms(model)
        assert num_fused(model) == 0
