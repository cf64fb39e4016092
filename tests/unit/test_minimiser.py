"""What keeps the minimiser π_ref · exp(r/β) / Z on data of a sampler that has nothing to do with the policy.

A categorical policy, and a group in which each outcome occurs as often as a fixed sampler with full support draws it:
the means of the objective over the group are then exact expectations. Following the exact gradient from anywhere ends
where it is zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import evidence_of, seeds
from torch import Tensor

from tba.objectives import Evidence, Objective
from tba.objectives.tba_prime import Settings as TbaPrime
from tba.objectives.trajectory_balance import Settings as VarGrad
from tba.objectives.trajectory_balance import trajectory_balance

BETA, LENGTH, NUM_STEPS, RATE = 0.5, 6, 600, 8.0
COUNTS = torch.tensor([6, 4, 3, 2, 1])
"""How often the sampler draws each outcome, of sixteen."""
OUTCOME_K = torch.arange(5).repeat_interleave(COUNTS)
SAMPLER = (COUNTS / 16).double().log()
REFERENCE = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1], dtype=torch.float64).log()
REWARD = torch.tensor([0.0, 0.5, 0.2, 1.0, 0.9], dtype=torch.float64)
TARGET = (REFERENCE + REWARD / BETA).log_softmax(0)

Gradient = Callable[[Tensor], Tensor]


def evidence_at(logits: Tensor) -> Evidence:
    """All responses have `LENGTH` tokens of equal log-probability, and are stale."""

    def by_token(table: Tensor) -> list[list[list[float]]]:
        return [[[value / LENGTH] * LENGTH for value in table[OUTCOME_K].tolist()]]

    policy_K = logits.log_softmax(0)[OUTCOME_K]
    reward = [REWARD[OUTCOME_K].tolist()]
    blank = [[torch.zeros(LENGTH, dtype=torch.float64) for _ in OUTCOME_K]]
    evidence = evidence_of(blank, by_token(SAMPLER), by_token(REFERENCE), reward, age=[[1] * len(OUTCOME_K)])
    return replace(evidence, policy_J=(policy_K / LENGTH).repeat_interleave(LENGTH))


def gradient_of(objective: Objective) -> Gradient:
    def gradient(logits: Tensor) -> Tensor:
        logits = logits.detach().requires_grad_()
        return torch.autograd.grad(objective(evidence_at(logits)).value, logits)[0]

    return gradient


def distance_at_rest(gradient: Gradient, seed: int = 0) -> float:
    """KL(target ‖ policy) where the gradient, followed from a random start, vanishes."""
    logits = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for _ in range(NUM_STEPS):
        step = gradient(logits)
        logits = logits - RATE * step
    assert float(step.abs().max()) < 1e-6, "it came to rest"
    return float((TARGET.exp() * (TARGET - logits.log_softmax(0))).sum())


def balance(**settings: Any) -> Gradient:
    return gradient_of(VarGrad(beta=BETA, **settings).build(num_steps=1, hidden_size=1))


def weighed(weigh: Callable[[Tensor, Tensor], Tensor]) -> Gradient:
    """Plain trajectory balance with weights that are a function of the advantage and of the drift."""

    def gradient(logits: Tensor) -> Tensor:
        logits = logits.detach().requires_grad_()
        tables = (logits.log_softmax(0), REFERENCE, REWARD)
        policy, reference, reward = (table[OUTCOME_K].view(1, -1) for table in tables)
        drift = (policy - SAMPLER[OUTCOME_K]).detach()
        loss = trajectory_balance(policy, reference, reward, beta=BETA, weigh=lambda a: weigh(a, drift / LENGTH))
        return torch.autograd.grad(loss.value, logits)[0]

    return gradient


@pytest.mark.parametrize("how", ["keep", "taper", "mask"])
@pytest.mark.parametrize("length", ["mean", "sum"])
def test_weights_on_stale_negatives_keep_it(how: str, length: str) -> None:
    for seed in range(2):
        assert distance_at_rest(balance(stale_negatives=how, stale_length=length), seed) < 1e-6


def test_those_weights_really_act_here() -> None:
    """The guard of the law above: on the way, a good part of the advantage is removed."""
    objective = VarGrad(beta=BETA, stale_negatives="taper").build(num_steps=1, hidden_size=1)
    loss = objective(evidence_at(REWARD))
    values = {name: value.double().numpy() for name, value in loss.values_GK.items()}
    assert objective.metrics(1, values)["stale/removed"] > 0.1


@given(weights=st.lists(st.floats(0.25, 4.0), min_size=5, max_size=5), seed=seeds)
@settings(max_examples=8, deadline=None)
def test_any_positive_weights_keep_it(weights: list[float], seed: int) -> None:
    of_outcome = torch.tensor(weights, dtype=torch.float64)
    of_outcome = of_outcome / of_outcome.max()  # so that the rate stays one that comes to rest
    assert distance_at_rest(weighed(lambda a, m: of_outcome[OUTCOME_K].view(1, -1)), seed) < 1e-6


@given(masked=st.sets(st.integers(0, 4)), seed=seeds)
@settings(max_examples=8, deadline=None)
def test_any_mask_of_negatives_keeps_it(masked: set[int], seed: int) -> None:
    """Whichever outcomes it leaves out, as long as it does so only where the advantage is negative."""
    is_masked = torch.tensor([[int(outcome) in masked for outcome in OUTCOME_K]])
    assert distance_at_rest(weighed(lambda a, m: (~(is_masked & (a < 0))).double()), seed) < 1e-6


def test_a_mask_on_both_sides_moves_it() -> None:
    """As clipping does: what has drifted, in whichever direction, is left out whether it is right or wrong."""
    assert distance_at_rest(weighed(lambda a, m: (m.abs() < 0.05).double())) > 0.1


@pytest.mark.parametrize(
    ("shift", "at_least"),
    [({"anchor": 0.1}, 0.009), ({"anchor": BETA}, 0.05), ({"baseline_shift": 0.1}, 0.015), ({"proximal": 0.05}, 0.009)],
    ids=str,
)
def test_what_is_added_to_the_advantage_moves_it(shift: dict[str, float], at_least: float) -> None:
    assert at_least < distance_at_rest(balance(**shift)) < 0.1


def test_the_mean_kl_of_the_policy_keeps_it_and_that_of_the_data_moves_it() -> None:
    def tba_prime(kl_mean: str, ratio_cap: float) -> float:
        settings = TbaPrime.model_validate({"beta": BETA, "kl_mean": kl_mean, "ratio_cap": ratio_cap})
        return distance_at_rest(gradient_of(settings.build(num_steps=1, hidden_size=1)))

    assert tba_prime("policy", 0.0) < 1e-6
    assert tba_prime("policy", 8.0) < 1e-6, "a ratio is a positive weight"
    assert tba_prime("behaviour", 0.0) == pytest.approx(distance_at_rest(balance(anchor=BETA)), rel=1e-6)
