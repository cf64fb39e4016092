"""With adapters, the reference is the policy's own base: the same numbers as a second copy gives, without one."""

from __future__ import annotations

import gc
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from numpy.typing import NDArray
from tiny_models import ARCHITECTURES, FLOAT32, answered, build
from transformers import PreTrainedModel

from tba.build.models import build_reference
from tba.build.searcher import build_searcher
from tba.channels.inline import InlineGroups, InlineWeights
from tba.config.settings import Config
from tba.engines import packed_linear
from tba.engines.packed_linear import PackedLayers, PackedLinear
from tba.policy.lora import add_adapters, without_adapters
from tba.policy.policy import Policy, Reference, export_weights, import_weights
from tba.runs.activity import Activity
from tba.search.searcher import Searcher
from tba.testing import save_tiny_model
from tba.types import SearcherName

pytest.importorskip("peft")

ASKED = answered([(5, [4, 7, 1]), (3, [2, 6])])
NAMES = [name for name in ARCHITECTURES if "deepseek" not in name]  # its experts are one tensor, not linear layers
CONFIG = Config.embedded(engine={"temperature": 0.8})


def adapted(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """With adapters far enough from nothing that leaving them on would show."""
    add_adapters(model, rank=3, alpha=6.0, targets=("all-linear",), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def logprobs(reference: Reference) -> NDArray[Any]:
    return np.concatenate([r for row in reference.token_logprobs(ASKED) for r in row])


def of_a_copy(base: PreTrainedModel) -> NDArray[Any]:
    return logprobs(Reference(Policy(base, temperature=0.8), max_tokens=100))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", NAMES)
@in_float64()
def test_it_gives_what_a_second_copy_gives(name: str, shared: bool) -> None:
    base = to_float64(build(ARCHITECTURES[name], shared=shared))
    policy = to_float64(adapted(deepcopy(base)))
    trained = of_a_copy(policy)
    expected = of_a_copy(base)
    assert np.abs(trained - expected).max() > 0.05
    np.testing.assert_allclose(logprobs(build_reference(CONFIG, policy)), expected, rtol=0, atol=1e-10)
    assert np.array_equal(of_a_copy(policy), trained), "and the policy is as it was"


def test_the_policy_can_be_trained_after_a_pass_of_its_reference() -> None:
    policy = adapted(build(ARCHITECTURES["llama"], shared=True))
    trained = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    logprobs(build_reference(CONFIG, policy))
    assert {name for name, parameter in policy.named_parameters() if parameter.requires_grad} == trained
    assert all("lora_" in name for name in trained)


def test_adapters_are_on_again_after_an_error() -> None:
    policy = adapted(build(ARCHITECTURES["llama"], shared=True))
    before = of_a_copy(policy)
    with pytest.raises(ZeroDivisionError), without_adapters(policy):
        raise ZeroDivisionError
    assert np.array_equal(of_a_copy(policy), before)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_packed_layers_take_turns(precision: packed_linear.Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searchers pack base and adapters, perhaps coarsely. The reference is never coarse, and never stale."""
    monkeypatch.setattr(packed_linear, "SMALL", 0)
    base = build(ARCHITECTURES["llama"], shared=True)
    policy = adapted(deepcopy(base))
    layers = PackedLayers(policy, precision)
    assert any(isinstance(module, PackedLinear) for module in policy.modules())
    reference = build_reference(CONFIG, policy)
    expected = of_a_copy(base)
    explored = of_a_copy(policy)
    np.testing.assert_allclose(logprobs(reference), expected, rtol=0, atol=FLOAT32)
    assert np.array_equal(of_a_copy(policy), explored)
    import_weights(policy, export_weights(adapted(deepcopy(base), seed=1)))
    layers.pack()
    assert np.abs(of_a_copy(policy) - explored).max() > 0.05
    np.testing.assert_allclose(logprobs(reference), expected, rtol=0, atol=FLOAT32)


# ---------------------------------------------------------------------------------------------------------------------
# In a Searcher
# ---------------------------------------------------------------------------------------------------------------------


def searcher_in(run: Path, **settings: Any) -> Searcher:
    model = {"path": str(save_tiny_model(run / "model")), **settings.pop("model", {})}
    config = Config.embedded(model=model, evaluation={"period": 0}, engine={"max_new_tokens": 8}, **settings)
    return build_searcher(
        config,
        run,
        SearcherName(0),
        weights=InlineWeights(),
        groups=InlineGroups(),
        activity=Activity(None, "searcher-0"),
        taking_turns=True,
    )


def living_parameters() -> dict[int, torch.nn.Parameter]:
    """All there are in this process, whoever holds them, by where their numbers lie."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if type(thing) is torch.nn.Parameter]
    return {parameter.untyped_storage().data_ptr(): parameter for parameter in found}


@pytest.mark.parametrize(("rank", "num_copies"), [(0, 2), (2, 1)])
def test_a_searcher_with_adapters_holds_the_model_once(tmp_path: Path, rank: int, num_copies: int) -> None:
    others = living_parameters()
    searcher = searcher_in(tmp_path, model={"lora_rank": rank})
    searcher.close()
    held = sum(parameter.numel() for place, parameter in living_parameters().items() if place not in others)
    parameters = dict(searcher.hand_up.reference._policy.named_parameters())
    adapters = sum(parameter.numel() for name, parameter in parameters.items() if "lora_" in name)
    base = sum(parameter.numel() for parameter in parameters.values()) - adapters
    assert bool(adapters) == bool(rank)
    assert held == num_copies * base + adapters


def test_a_searchers_reference_is_the_model_it_began_with(tmp_path: Path) -> None:
    """Before and after it has loaded adapters that are far from nothing."""
    searcher = searcher_in(tmp_path, model={"lora_rank": 2})
    searcher.close()
    model = searcher.hand_up.reference._policy.model
    before = logprobs(searcher.hand_up.reference)
    changed = deepcopy(model)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
    import_weights(model, export_weights(changed))
    policy = Reference(Policy(model), max_tokens=100)
    assert np.abs(logprobs(policy) - before).max() > 0.05
    assert np.array_equal(logprobs(searcher.hand_up.reference), before)
