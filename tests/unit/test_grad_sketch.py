"""The cosine between the gradients of consecutive steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from trainer_cases import ages, learner_in, random_groups

from tba.learn.grad_sketch import GradSketch
from tba.testing import save_tiny_model


def parameters(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(size)) for size in sizes]


def give(to: list[nn.Parameter], gradient: torch.Tensor) -> None:
    for parameter, part in zip(to, gradient.split([p.numel() for p in to]), strict=True):
        parameter.grad = part.clone()


def test_a_small_model_is_compared_whole() -> None:
    """(1, 0, 0, 1) and (1, 1, 1, 1): 2 / (√2 · 2)."""
    weights = parameters(3, 1)
    sketch = GradSketch(weights)
    give(weights, torch.tensor([1.0, 0.0, 0.0, 1.0]))
    assert sketch.cosine() is None, "there is nothing to compare with"
    give(weights, torch.ones(4))
    assert sketch.cosine() == pytest.approx(2**-0.5)
    give(weights, -7 * torch.ones(4))
    assert sketch.cosine() == pytest.approx(-1.0)


def test_a_large_one_is_estimated_from_some_coordinates() -> None:
    """Two gradients whose cosine is .6. Five standard errors of 4,096 coordinates are less than .08."""
    weights = parameters(90_000, 30_000, 10)
    sketch = GradSketch(weights, 4_096)
    rng = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 120_010, generator=rng, dtype=torch.float64)
    for gradient in (one, 0.6 * one + 0.8 * other):
        give(weights, gradient.float())
        found = sketch.cosine()
    assert sketch.last is not None
    assert 3_900 < len(sketch.last) <= 4_096
    assert found == pytest.approx(0.6, abs=0.08)


def test_what_has_no_direction_has_no_cosine() -> None:
    weights = parameters(4)
    sketch = GradSketch(weights)
    for gradient in (torch.ones(4), torch.zeros(4), torch.ones(4)):
        give(weights, gradient)
        assert sketch.cosine() is None
    give(weights, torch.tensor([1.0, float("nan"), 0.0, 0.0]))
    assert sketch.cosine() is None
    give(weights, torch.ones(4))
    assert sketch.cosine() is None, "what was not finite is not compared with"
    give(weights, torch.ones(4))
    assert sketch.cosine() == pytest.approx(1.0)


def test_a_parameter_without_a_gradient_counts_as_zeros() -> None:
    weights = parameters(2, 2)
    sketch = GradSketch(weights)
    give(weights, torch.ones(4))
    sketch.cosine()
    weights[1].grad = None
    assert sketch.cosine() == pytest.approx(2**-0.5)


def test_one_of_other_coordinates_is_not_compared_with() -> None:
    weights = parameters(4)
    sketch = GradSketch(weights)
    sketch.restore(torch.ones(5))
    assert sketch.last is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


def test_a_learner_measures_it_from_the_second_step_on_also_after_a_resume(tmp_path: Path, folder: str) -> None:
    first, second = random_groups(2), random_groups(2, seed=1)
    learner, again = learner_in(tmp_path / "a", folder), learner_in(tmp_path / "b", folder)
    assert learner.step(first, ages(first), 1).grad_cosine is None
    (tmp_path / "saved").mkdir()
    learner.save(tmp_path / "saved")
    again.load(tmp_path / "saved")
    found = learner.step(second, ages(second), 2).grad_cosine
    assert found is not None
    assert -1 <= found <= 1
    assert again.step(second, ages(second), 2).grad_cosine == found


def test_it_can_be_left_out(tmp_path: Path, folder: str) -> None:
    learner = learner_in(tmp_path / "a", folder, grad_cosine=False)
    groups = random_groups(2)
    assert [learner.step(groups, ages(groups), step).grad_cosine for step in (1, 2)] == [None, None]
