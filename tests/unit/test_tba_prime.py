"""TBA': by hand, and as trajectory balance where it is the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from objective_cases import evidence_of, random_evidence, seeds
from torch.testing import assert_close

from tba.objectives.tba_prime import Settings
from tba.objectives.trajectory_balance import Settings as VarGrad


def tba_prime(**settings: Any) -> Any:
    return Settings(**settings).build(num_steps=1, hidden_size=1)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_with_the_policys_mean_it_is_trajectory_balance(seed: int) -> None:
    evidence, leaf = random_evidence(seed)
    ours = tba_prime(beta=0.3, kl_mean="policy")(evidence)
    plain = VarGrad(beta=0.3, stale_negatives="keep").build(num_steps=1, hidden_size=1)(evidence)
    assert_close(ours.advantage_GK, plain.advantage_GK, rtol=1e-10, atol=1e-12)
    assert_close(*(torch.autograd.grad(loss.value, leaf)[0] for loss in (ours, plain)), rtol=1e-10, atol=1e-12)


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_mean_of_the_data_is_an_anchor_of_strength_beta(seed: int) -> None:
    evidence, leaf = random_evidence(seed)
    evidence.age_GK.fill_(1)  # the anchor takes fresh data as having no drift at all
    ours = tba_prime(beta=0.3, kl_mean="behaviour")(evidence)
    anchored = VarGrad(beta=0.3, anchor=0.3, stale_negatives="keep").build(num_steps=1, hidden_size=1)(evidence)
    assert_close(ours.advantage_GK, anchored.advantage_GK, rtol=1e-9, atol=1e-10)
    assert_close(*(torch.autograd.grad(loss.value, leaf)[0] for loss in (ours, anchored)), rtol=1e-9, atol=1e-10)


def by_hand(**settings: Any) -> tuple[Any, torch.Tensor]:
    """Two responses of two tokens and one. Ratios to the sampler are 2, 1 and 1/4; κ is 2 log 2 and −2 log 2."""
    leaf = torch.tensor([math.log(0.5), math.log(0.5), math.log(0.125)], dtype=torch.float64).requires_grad_()
    evidence = evidence_of(
        [list(leaf.split([2, 1]))],
        [[[math.log(0.25), math.log(0.5)], [math.log(0.5)]]],
        [[[math.log(0.25), math.log(0.25)], [math.log(0.5)]]],
        [[1.0, 0.0]],
        age=[[1, 1]],
    )
    loss = tba_prime(beta=0.1, **settings)(evidence)
    return loss, torch.autograd.grad(loss.value, leaf)[0]


LOG2 = math.log(2)


@pytest.mark.parametrize(("kl_mean", "mean"), [("policy", 0.0), ("behaviour", LOG2 / 2)])
def test_the_advantage_by_hand(kl_mean: str, mean: float) -> None:
    """κ̄ of the policy is (2 − 2)/2 · log 2, and that of the data (1 + 0)/2 · log 2."""
    loss, found = by_hand(kl_mean=kl_mean)
    first, second = 0.5 - 0.1 * (2 * LOG2 - mean), -0.5 - 0.1 * (-2 * LOG2 - mean)
    assert_close(loss.advantage_GK, torch.tensor([[first, second]], dtype=torch.float64))
    assert_close(found, torch.tensor([-first / 2, -first / 2, -second / 2], dtype=torch.float64))


def test_a_ratio_weighs_tokens_and_above_the_cap_the_gradient_is_dead() -> None:
    loss, found = by_hand(ratio_cap=1.5)
    first, second = loss.advantage_GK[0].tolist()
    assert_close(loss.value, torch.tensor(-(1.5 * first + first + second / 4) / 2, dtype=torch.float64))
    assert_close(found, torch.tensor([0.0, -first / 2, -second / 8], dtype=torch.float64))
    assert loss.values_GK["clipped_fraction"].tolist() == [[0.5, 0.0]]
    _, whole = by_hand(ratio_cap=8.0)
    assert_close(whole, torch.tensor([-2 * first / 2, -first / 2, -second / 8], dtype=torch.float64))


def test_a_single_token_far_from_the_reference_counts_ten_nats() -> None:
    policy = torch.zeros(3, dtype=torch.float64).requires_grad_()
    rows = [list(policy.split([2, 1]))]
    evidence = evidence_of(rows, [[[0.0, 0.0], [0.0]]], [[[-300.0, -1.0], [2.0]]], [[0.0, 0.0]])
    loss = tba_prime(beta=1.0, kl_mean="policy")(evidence)
    assert_close(loss.advantage_GK, torch.tensor([[-(11 - 4.5), -(-2 - 4.5)]], dtype=torch.float64))
