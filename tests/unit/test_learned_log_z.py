"""Trajectory balance with a learned log Z: the same laws and optimum, and the true log Z beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from objective_cases import BETAS, random_case, seeds, shapes
from torch import Tensor
from torch.testing import assert_close
from trainer_cases import random_groups, trainer_in

from tba.learn.learner import LocalLearner
from tba.objectives.log_partition import LogPartition
from tba.objectives.target import TargetSettings
from tba.objectives.trajectory_balance import Settings as VarGradSettings
from tba.objectives.trajectory_balance import trajectory_balance
from tba.objectives.trajectory_balance_learned_z import Settings
from tba.testing import save_tiny_model


@pytest.mark.parametrize("beta", BETAS)
@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_gradients_are_those_of_the_advantage(beta: float, shape: tuple[int, int], seed: int) -> None:
    """−mean(A ∇ log π) for the policy and −mean(A) for log Z, with A = r − β (log Z + κ), whatever β."""
    policy, reference, reward = random_case(shape, seed)
    log_z = torch.randn(shape[0], 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    log_z.requires_grad_()
    loss = trajectory_balance(policy, reference, reward, beta=beta, log_z_G1=log_z)
    advantage = (reward - beta * (log_z + policy - reference)).detach()
    to_policy, to_log_z = torch.autograd.grad(loss.value, (policy, log_z))
    assert_close(to_policy, -advantage / advantage.numel(), rtol=1e-6, atol=1e-12)
    assert_close(to_log_z, -advantage.mean(1, keepdim=True) / shape[0], rtol=1e-6, atol=1e-12)
    assert_close(loss.advantage_GK, advantage, rtol=1e-6, atol=1e-12)
    assert_close(loss.value, beta / 2 * (advantage / beta).square().mean(), rtol=1e-6, atol=1e-12)
    assert not any(value.requires_grad for value in loss.values_GK.values())


@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_given_the_groups_own_estimate_the_objective_is_vargrad(shape: tuple[int, int], seed: int) -> None:
    policy, reference, reward = random_case(shape, seed)
    estimate = (reward / 0.05 - (policy - reference)).mean(1, keepdim=True).detach()
    ours = trajectory_balance(policy, reference, reward, beta=0.05, log_z_G1=estimate)
    vargrad = trajectory_balance(policy, reference, reward, beta=0.05)
    assert_close(ours.value, vargrad.value)
    assert_close(*(torch.autograd.grad(loss.value, policy)[0] for loss in (ours, vargrad)))


def test_a_group_of_one_has_something_to_be_compared_with() -> None:
    policy, reference, reward = random_case((3, 1), 0)
    loss = trajectory_balance(policy, reference, reward, beta=0.5, log_z_G1=torch.ones(3, 1))
    assert torch.autograd.grad(loss.value, policy)[0].abs().min() > 0


NUM_OUTCOMES, BETA = 8, 0.5


@pytest.mark.parametrize("weight", [1.0, 0.4])
@pytest.mark.parametrize("tilted", [False, True], ids=["on-policy", "reward-tilted"])
def test_a_tabular_policy_reaches_the_target_and_log_z_the_true_one(tilted: bool, weight: float) -> None:
    """Several prompts at once, told apart by their hidden state alone."""
    generator = torch.Generator().manual_seed(3)
    reference = torch.randn(3, NUM_OUTCOMES, generator=generator, dtype=torch.float64).log_softmax(-1)
    reward = torch.rand(3, NUM_OUTCOMES, generator=generator, dtype=torch.float64)
    features = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    logits, log_z = reference.clone().requires_grad_(), LogPartition(6).double()
    rates = [{"params": [logits], "lr": 1.0}, {"params": list(log_z.parameters()), "lr": 0.1}]
    optimizer = torch.optim.SGD(rates)
    for _ in range(2_000):
        behaviour = (reference + reward).softmax(-1) if tilted else logits.detach().softmax(-1)
        drawn = torch.multinomial(behaviour, 16, replacement=True, generator=generator)
        tables = (logits.log_softmax(-1), reference, reward)
        terms = (table.gather(1, drawn) for table in tables)
        loss = trajectory_balance(*terms, beta=BETA, reference_weight=weight, log_z_G1=log_z(features))
        optimizer.zero_grad()
        (3 * loss.value).backward()
        optimizer.step()
    unnormalised = weight * reference + reward / BETA
    assert_close(logits.softmax(-1), unnormalised.softmax(-1), rtol=0, atol=2e-3)
    assert_close(log_z(features).squeeze(1), unnormalised.logsumexp(-1), rtol=0, atol=2e-3)


def test_log_z_starts_once_at_what_the_first_data_say() -> None:
    log_z, prompts = LogPartition(4), torch.randn(2, 4)
    assert_close(log_z(prompts), torch.zeros(2, 1))
    log_z.start_at(-70.0)
    log_z.start_at(5.0)
    assert_close(log_z(prompts), torch.full((2, 1), -70.0))
    again = LogPartition(4)
    again.load_state_dict(log_z.state_dict())
    again.start_at(5.0)
    assert_close(again(prompts), torch.full((2, 1), -70.0))


def test_prompts_get_no_gradient_and_their_scale_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    log_z, prompts = LogPartition(4).double(), torch.randn(2, 4, generator=generator, dtype=torch.float64)
    prompts.requires_grad_()
    torch.nn.init.normal_(log_z.linear.weight, generator=generator)
    values: Tensor = log_z(prompts)
    # Equal but for the small number that the norm adds to a variance of about 1, lest it divide by zero.
    assert_close(log_z(1000 * prompts), values, rtol=1e-3, atol=1e-3)
    values.sum().backward()
    assert prompts.grad is None


@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_the_trainer_learns_log_z_beside_the_policy(tmp_path: Path, attention: str) -> None:
    folder = str(save_tiny_model(tmp_path / "model"))
    trainer = trainer_in(tmp_path / "run", folder, attention=attention, objective=Settings(beta=0.1))
    assert isinstance(trainer.learner, LocalLearner)
    log_z = trainer.learner.objective.modules["log_z"]
    assert isinstance(log_z, LogPartition)
    groups = random_groups(4)
    first = trainer.train_step(groups)
    vargrad = trainer_in(tmp_path / "other", folder, attention=attention).train_step(groups)
    assert first["log_z"] == pytest.approx(vargrad["log_z"], rel=1e-4), "its first value is the groups' estimate"
    losses = [trainer.train_step(groups)["loss"] for _ in range(20)]
    assert losses[-1] < first["loss"] / 2
    assert log_z.linear.weight.abs().max() > 0


def test_the_schedules_make_the_target_of_the_paper() -> None:
    """log R = [log π_ref / γ(t) + r / β] / T(t)."""
    config: TargetSettings = VarGradSettings(
        beta=0.05,
        reference_temperature=1.0,
        reference_temperature_final=1.2,
        reference_temperature_steps=10,
        reward_temperature=2.0,
        reward_temperature_final=1.0,
        reward_temperature_steps=4,
    )
    log_reference, reward = -30.0, -0.7
    for step, gamma, temperature in [(1, 1.0, 2.0), (3, 1.04, 1.5), (5, 1.08, 1.0), (11, 1.2, 1.0), (50, 1.2, 1.0)]:
        target = config.target_at(step, 100)
        wanted = (log_reference / gamma + reward / 0.05) / temperature
        assert target.reference_weight * log_reference + reward / target.beta == pytest.approx(wanted)


def test_without_schedules_the_target_is_the_plain_one() -> None:
    target = VarGradSettings(beta=0.3).target_at(7, 100)
    assert (target.beta, target.reference_weight) == (0.3, 1.0)


def test_a_schedule_without_an_end_is_told() -> None:
    with pytest.raises(ValueError, match=r"objective\.reward_temperature_final is missing"):
        VarGradSettings(reward_temperature_steps=5)
