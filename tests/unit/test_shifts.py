"""What may be added to the advantage: each by hand, without a gradient of its own, and nothing unless asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from objective_cases import random_evidence, seeds
from torch import Tensor
from torch.testing import assert_close

from tba.objectives import Objective
from tba.objectives.shifts import shift_of
from tba.objectives.trajectory_balance import Settings as VarGrad
from tba.objectives.trajectory_balance_learned_z import Settings as LearnedLogZ

ALL = {"anchor": 0.1, "baseline_shift": 0.2, "proximal": 0.05}


def objective_of(settings: VarGrad | LearnedLogZ) -> Objective:
    made = settings.build(num_steps=1, hidden_size=4)
    for module in made.modules.values():
        module.double()
    return made


def tensor(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


DRIFT = tensor([-2.0, 0.0, -1.0], [3.0, 3.0, 0.0])
REWARD = tensor([0.0, 0.5, 0.25], [1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("given_settings", "wanted"),
    [
        ({"anchor": 0.1}, [[0.1, 0.1, 0.1], [-0.2, -0.2, -0.2]]),
        ({"baseline_shift": 0.2}, [[0.1, 0.1, 0.1], [0.0, 0.0, 0.0]]),
        ({"proximal": 0.05}, [[0.1, 0.0, 0.05], [-0.15, -0.15, 0.0]]),
        (ALL, [[0.3, 0.2, 0.25], [-0.35, -0.35, -0.2]]),
    ],
    ids=str,
)
def test_each_by_hand(given_settings: dict[str, float], wanted: list[list[float]]) -> None:
    found = shift_of(VarGrad(**given_settings), DRIFT.requires_grad_(), REWARD)
    assert found is not None
    assert not found.requires_grad
    assert_close(found.expand_as(DRIFT), tensor(*wanted))


def test_nothing_is_added_unless_it_is_asked_for() -> None:
    assert shift_of(VarGrad(), DRIFT, REWARD) is None


@pytest.mark.parametrize("kind", [VarGrad, LearnedLogZ])
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_it_reaches_the_policy_and_nothing_else(kind: Any, seed: int) -> None:
    """The gradient is −mean(w (A + shift) ∇ log π). A learned log Z does not see the shift: it would learn it away."""
    evidence, leaf = random_evidence(seed)
    plain, shifted = (objective_of(kind(beta=0.1, **more)) for more in ({}, {**ALL, "stale_negatives": "taper"}))
    loss, without = shifted(evidence), plain(evidence)
    drift = evidence.drift_GK.masked_fill(evidence.age_GK == 0, 0.0)
    shift = shift_of(VarGrad(**ALL), drift, evidence.reward_GK)
    assert shift is not None
    assert_close(loss.advantage_GK, without.advantage_GK + shift, rtol=1e-10, atol=1e-12)
    assert torch.equal(loss.value, without.value), "the number is that of plain trajectory balance"
    [found] = torch.autograd.grad(loss.value, leaf, retain_graph=True)
    pushed = loss.values_GK["weight"] * loss.advantage_GK
    assert_close(found, -evidence.per_token(pushed) / pushed.numel(), rtol=1e-10, atol=1e-12)
    if kind is LearnedLogZ:
        [to_log_z] = torch.autograd.grad(loss.value, shifted.modules["log_z"].linear.bias)
        assert_close(to_log_z, -without.advantage_GK.mean().view(1), rtol=1e-10, atol=1e-12)


@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_on_fresh_data_anchor_and_proximal_change_nothing(seed: int) -> None:
    evidence, leaf = random_evidence(seed, oldest=0)
    plain, drawn = (objective_of(VarGrad(**more))(evidence) for more in ({}, {"anchor": 0.3, "proximal": 0.2}))
    assert_close(drawn.advantage_GK, plain.advantage_GK, rtol=0, atol=0)
    assert_close(*(torch.autograd.grad(loss.value, leaf)[0] for loss in (drawn, plain)), rtol=0, atol=0)


@pytest.mark.parametrize("name", ALL)
def test_none_of_them_may_be_negative(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        VarGrad.model_validate({name: -0.1})
