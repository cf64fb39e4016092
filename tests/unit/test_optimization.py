from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load, save
from torch import nn
from transformers import PreTrainedModel

from tba.config.training import TrainerConfig
from tba.learn.optimization import Optimization

NUM_STEPS = 20


def model(seed: int = 0) -> PreTrainedModel:
    """All that is asked of a model here is its named parameters, one of them frozen."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    layers[1].bias.requires_grad_(False)
    return cast(PreTrainedModel, layers)


def step(model: PreTrainedModel, optimization: Optimization, seed: int) -> None:
    """One update with a gradient that depends on the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in optimization.parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimization.step()
    optimization.zero_grad()


def rates(**settings: Any) -> list[float]:
    """The learning rate of each step of a run."""
    config = TrainerConfig(**{"num_steps": NUM_STEPS, "learning_rate": 0.1, **settings})
    trained = model()
    optimization = Optimization(trained, config)
    found = []
    for i in range(config.num_steps):
        found.append(optimization.learning_rate)
        step(trained, optimization, i)
    return found


def test_the_constant_schedule_keeps_its_rate() -> None:
    assert rates() == [0.1] * NUM_STEPS


def test_warm_up_rises_in_equal_steps() -> None:
    """From the first on, which moves the weights too, to the peak."""
    assert rates(warmup_steps=4) == pytest.approx([0.02, 0.04, 0.06, 0.08] + [0.1] * 16)
    assert rates(warmup_steps=1) == pytest.approx([0.05] + [0.1] * 19)


@pytest.mark.parametrize("schedule", ["linear", "cosine", "warmup_stable_decay"])
def test_what_follows_the_warm_up_does_not_depend_on_how_it_rises(schedule: str) -> None:
    """After W steps of warm-up a schedule is the one of a run that is W steps shorter and has none."""
    decay = {"decay_steps": 6} if schedule == "warmup_stable_decay" else {}
    shorter = rates(schedule=schedule, num_steps=NUM_STEPS - 4, **decay)
    assert rates(schedule=schedule, warmup_steps=4, **decay)[4:] == pytest.approx(shorter)


def test_the_linear_schedule_falls_in_equal_steps() -> None:
    found = rates(schedule="linear", warmup_steps=5)
    assert found[5] == pytest.approx(0.1)
    falls = [a - b for a, b in pairwise(found[5:])]
    assert falls == pytest.approx([0.1 / 15] * 14)
    assert found[-1] == pytest.approx(0.1 / 15), "the last step still moves"


def test_the_cosine_schedule_is_half_way_down_at_half_time() -> None:
    found = rates(schedule="cosine")
    assert found[0] == pytest.approx(0.1)
    assert found[10] == pytest.approx(0.05)
    assert found == sorted(found, reverse=True)
    assert found[1] > 0.099
    assert 0 < found[-1] < 0.001


def test_warmup_stable_decay_has_its_three_parts() -> None:
    found = rates(schedule="warmup_stable_decay", warmup_steps=4, decay_steps=6)
    assert found[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert found[4:15] == pytest.approx([0.1] * 11)
    assert found[14:] == sorted(found[14:], reverse=True)
    assert 0 < found[-1] < 0.02
    assert rates(schedule="warmup_stable_decay")[:17] == pytest.approx([0.1] * 17), "a fifth of the steps decays"


def test_settings_reach_adamw() -> None:
    """The first update of AdamW is the sign of the gradient times the rate, after the weights have decayed."""
    trained = model()
    config = TrainerConfig(num_steps=NUM_STEPS, learning_rate=0.1, weight_decay=0.5)
    optimization = Optimization(trained, config)
    before = [parameter.detach().clone() for parameter in optimization.parameters]
    frozen = trained[1].bias.detach().clone()  # type: ignore[index]
    step(trained, optimization, 0)
    generator = torch.Generator().manual_seed(0)
    for parameter, old in zip(optimization.parameters, before, strict=True):
        gradient = torch.randn(parameter.shape, generator=generator)
        torch.testing.assert_close(parameter.detach(), old * (1 - 0.1 * 0.5) - 0.1 * gradient.sign(), rtol=0, atol=1e-5)
    assert torch.equal(trained[1].bias, frozen)  # type: ignore[index]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "warmup_stable_decay"])
@pytest.mark.parametrize("saved_after", [0, 1, 7])
def test_a_restored_optimizer_takes_the_very_same_steps(schedule: str, saved_after: int) -> None:
    config = TrainerConfig(num_steps=NUM_STEPS, learning_rate=0.1, schedule=schedule, warmup_steps=3, weight_decay=0.1)
    through = model()
    optimization = Optimization(through, config)
    for i in range(saved_after):
        step(through, optimization, i)
    # Through the formats of a checkpoint: safetensors and JSON.
    weights = {name: tensor.clone() for name, tensor in through.state_dict().items()}
    tensors = load(save(optimization.tensors()))
    schedule_state = json.loads(json.dumps(optimization.schedule_state()))

    resumed = model(seed=1)
    resumed.load_state_dict(weights)
    restored = Optimization(resumed, config)
    restored.restore(tensors, schedule_state)
    for i in range(saved_after, NUM_STEPS):
        assert restored.learning_rate == optimization.learning_rate
        step(through, optimization, i)
        step(resumed, restored, i)
        assert all(map(torch.equal, through.parameters(), resumed.parameters()))


def test_an_optimizer_that_was_not_restored_takes_other_steps() -> None:
    """The companion: without its moments the next step is another one."""
    config = TrainerConfig(num_steps=NUM_STEPS, learning_rate=0.1)
    through = model()
    optimization = Optimization(through, config)
    step(through, optimization, 0)
    resumed = model(seed=1)
    resumed.load_state_dict(through.state_dict())
    step(through, optimization, 1)
    step(resumed, Optimization(resumed, config), 1)
    assert not all(map(torch.equal, through.parameters(), resumed.parameters()))
