"""The laws of the objective (docs/objective.md), and the optimum a tabular policy reaches under it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import BETAS, random_case, seeds, shapes
from torch import Tensor
from torch.testing import assert_close

from tba.learn.evidence import Pass, totals_of
from tba.objectives.trajectory_balance import Settings, trajectory_balance
from tba.policy.batch import collate, micro_batches
from tba.policy.policy import Logprobs
from tba.testing import make_group
from tba.types import Group


def gradient(loss: Tensor, policy_GK: Tensor) -> Tensor:
    return torch.autograd.grad(loss, policy_GK)[0]


def advantage(policy_GK: Tensor, reference_GK: Tensor, reward_GK: Tensor, beta: float) -> Tensor:
    """A = (r − r̄) − β (κ − κ̄), eq. 7, written out here once more."""
    kappa_GK = (policy_GK - reference_GK).detach()
    return (reward_GK - reward_GK.mean(1, keepdim=True)) - beta * (kappa_GK - kappa_GK.mean(1, keepdim=True))


def equation_5(policy_GK: Tensor, reference_GK: Tensor, reward_GK: Tensor, beta: float, *, stop: bool = True) -> Tensor:
    """The paper's loss, with or without the stop-gradient on log Z."""
    log_z_G1 = (reference_GK - policy_GK + reward_GK / beta).mean(dim=1, keepdim=True)
    log_z_G1 = log_z_G1.detach() if stop else log_z_G1
    return (log_z_G1 + policy_GK - reference_GK - reward_GK / beta).square().mean()


@pytest.mark.parametrize("beta", BETAS)
@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_gradient_is_that_of_reinforce_whatever_beta(beta: float, shape: tuple[int, int], seed: int) -> None:
    policy, reference, reward = random_case(shape, seed)
    loss = trajectory_balance(policy, reference, reward, beta=beta)
    expected = advantage(policy, reference, reward, beta)
    reinforce = -(expected * policy).mean()
    assert_close(gradient(loss.value, policy), gradient(reinforce, policy), rtol=1e-6, atol=1e-12)
    assert_close(loss.advantage_GK, expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_gradient_is_half_beta_times_that_of_equation_5(beta: float, shape: tuple[int, int], seed: int) -> None:
    policy, reference, reward = random_case(shape, seed)
    ours = trajectory_balance(policy, reference, reward, beta=beta).value
    theirs = equation_5(policy, reference, reward, beta)
    assert_close(gradient(ours, policy), beta / 2 * gradient(theirs, policy), rtol=1e-6, atol=1e-12)
    assert_close(ours, beta / 2 * theirs, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("beta", BETAS)
@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_the_gradient_through_log_z_vanishes(beta: float, shape: tuple[int, int], seed: int) -> None:
    policy, reference, reward = random_case(shape, seed)
    ours = gradient(trajectory_balance(policy, reference, reward, beta=beta).value, policy)
    variance = gradient(equation_5(policy, reference, reward, beta, stop=False), policy)
    assert_close(ours, beta / 2 * variance, rtol=1e-6, atol=1e-12)


@given(shape=shapes, seed=seeds, constant=st.floats(-100, 100))
@settings(max_examples=30, deadline=None)
def test_a_constant_added_to_the_rewards_of_a_group_changes_nothing(
    shape: tuple[int, int], seed: int, constant: float
) -> None:
    policy, reference, reward = random_case(shape, seed)
    raised = reward.clone()
    raised[0] += constant
    before = trajectory_balance(policy, reference, reward, beta=0.05)
    after = trajectory_balance(policy, reference, raised, beta=0.05)
    assert_close(after.value, before.value, rtol=1e-9, atol=1e-9)
    assert_close(gradient(after.value, policy), gradient(before.value, policy), rtol=1e-9, atol=1e-9)


@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_where_the_policy_is_the_reference_the_residual_is_minus_the_centred_reward(
    shape: tuple[int, int], seed: int
) -> None:
    _, reference, reward = random_case(shape, seed)
    beta = 0.05
    loss = trajectory_balance(reference, reference, reward, beta=beta)
    residual = -loss.advantage_GK / beta
    centred = reward - reward.mean(1, keepdim=True)
    assert_close(residual, -centred / beta, rtol=1e-9, atol=1e-9)
    assert_close(loss.values_GK["residual"].abs(), (centred / beta).abs(), rtol=1e-9, atol=1e-9)
    assert_close(loss.values_GK["log_z"].mean(), (reward / beta).mean(), rtol=1e-9, atol=1e-9)
    assert not loss.values_GK["log_ratio"].any()


@given(shape=shapes, seed=seeds)
@settings(max_examples=20, deadline=None)
def test_leave_one_out_differs_by_a_factor_only(shape: tuple[int, int], seed: int) -> None:
    policy, reference, reward = random_case(shape, seed)
    beta, K = 0.05, shape[1]
    value_GK = (reward - beta * (policy - reference)).detach()
    others_GK = (value_GK.sum(1, keepdim=True) - value_GK) / (K - 1)
    loss = trajectory_balance(policy, reference, reward, beta=beta)
    assert_close(value_GK - others_GK, K / (K - 1) * loss.advantage_GK, rtol=1e-9, atol=1e-12)


def test_the_numbers_beside_the_loss_carry_no_gradient() -> None:
    loss = trajectory_balance(*random_case((2, 3), 0), beta=0.05)
    assert loss.value.requires_grad
    assert not loss.advantage_GK.requires_grad
    assert not any(value.requires_grad for value in loss.values_GK.values())


# ---------------------------------------------------------------------------------------------------------------------
# Groups are compared with themselves alone
# ---------------------------------------------------------------------------------------------------------------------


def unequal_groups(num_groups: int, seed: int) -> list[Group]:
    """Groups of three responses, with prompts and responses of very different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def tokens(longest: int) -> list[int]:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        return torch.randint(0, 8, (length,), generator=generator).tolist()

    return [
        make_group(tokens(9), [tokens(12) for _ in range(3)], torch.randn(3, generator=generator).tolist())
        for _ in range(num_groups)
    ]


def step_gradient(table: Tensor, groups: list[Group], parts: Iterable[list[int]]) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one step in several passes, each of these groups.

    The toy model scores each token on its own, by a table: enough to tell which responses were compared.
    """
    objective = Settings(beta=0.1).build(num_steps=1, hidden_size=1)
    total, gradients = torch.zeros(()), torch.zeros_like(table)
    for numbers in parts:
        batch = collate([groups[i] for i in numbers], 10**6, table.dtype)
        [packed] = batch.parts
        logprobs = Logprobs(table.log_softmax(0)[packed.targets], torch.zeros(len(numbers), 1))
        one = Pass(batch, torch.zeros(batch.reward_GK.shape, dtype=torch.long), 1, totals_of(groups))
        value = objective(one.evidence(logprobs)).value
        total = total + value.detach()
        gradients += torch.autograd.grad(value, table)[0]
    return total, gradients


@given(num_groups=st.integers(1, 6), budget=st.integers(1, 200), seed=seeds)
@settings(max_examples=40, deadline=None)
def test_the_loss_of_several_groups_is_the_mean_of_theirs_for_any_split(
    num_groups: int, budget: int, seed: int
) -> None:
    groups = unequal_groups(num_groups, seed)
    table = torch.randn(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()
    value, grads = step_gradient(table, groups, micro_batches(groups, budget))
    alone = [step_gradient(table, [group], [[0]]) for group in groups]
    assert_close(value, torch.stack([v for v, _ in alone]).mean(), rtol=1e-10, atol=1e-10)
    assert_close(grads, torch.stack([g for _, g in alone]).mean(0), rtol=1e-10, atol=1e-10)
    together_value, together_grads = step_gradient(table, groups, [list(range(len(groups)))])
    assert_close(value, together_value, rtol=1e-10, atol=1e-10)
    assert_close(grads, together_grads, rtol=1e-10, atol=1e-10)


def test_comparing_across_groups_would_show() -> None:
    """The companion of the law above: a log Z shared by two groups gives another gradient."""
    policy, reference, reward = random_case((2, 4), 1)
    right = gradient(trajectory_balance(policy, reference, reward, beta=0.05).value, policy)
    flat = (1, 8)
    mixed = trajectory_balance(policy.view(flat), reference.view(flat), reward.view(flat), beta=0.05)
    assert (gradient(mixed.value, policy) - right).abs().max() > 0.01


# ---------------------------------------------------------------------------------------------------------------------
# The optimum of a tabular policy
# ---------------------------------------------------------------------------------------------------------------------

NUM_PROMPTS, NUM_OUTCOMES, NUM_SAMPLES, BETA, NUM_STEPS = 3, 8, 8, 0.5, 1_000


class Tabular:
    """A categorical distribution over eight outcomes for each of three prompts, trained from some buffer."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(7)
        shape = (NUM_PROMPTS, NUM_OUTCOMES)
        self.reference = torch.randn(shape, generator=self.generator, dtype=torch.float64).log_softmax(-1)
        self.reward = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        self.logits = self.reference.clone().requires_grad_()
        self.past: deque[Tensor] = deque([self.reference], maxlen=11)

    def distance(self) -> float:
        target = (self.reference + self.reward / BETA).softmax(-1)
        return float((self.logits.softmax(-1) - target).abs().max().detach())

    def behaviour(self, buffer: str) -> Tensor:
        """The distribution the buffer's outcomes come from, as log-probabilities."""
        if buffer == "reward-tilted":  # and never refreshed
            return (self.reference + self.reward).log_softmax(-1)
        return self.past[-1] if buffer == "on-policy" else self.past[0]

    def train(self, buffer: str, loss_of: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> None:
        optimizer = torch.optim.SGD([self.logits], lr=2.0)
        for _ in range(NUM_STEPS):
            behaviour = self.behaviour(buffer)
            drawn_GK = torch.multinomial(behaviour.exp(), NUM_SAMPLES, replacement=True, generator=self.generator)
            tables = (self.logits.log_softmax(-1), self.reference, self.reward, behaviour)
            loss = loss_of(*(table.gather(1, drawn_GK) for table in tables))
            optimizer.zero_grad()
            (loss * NUM_PROMPTS).backward()
            optimizer.step()
            self.past.append(self.logits.detach().log_softmax(-1))


def balanced(policy_GK: Tensor, reference_GK: Tensor, reward_GK: Tensor, behaviour_GK: Tensor) -> Tensor:
    return trajectory_balance(policy_GK, reference_GK, reward_GK, beta=BETA).value


def plain_reinforce(policy_GK: Tensor, reference_GK: Tensor, reward_GK: Tensor, behaviour_GK: Tensor) -> Tensor:
    """Mean baseline, and the KL in the reward as it was when the responses were made; no importance ratio."""
    value_GK = reward_GK - BETA * (behaviour_GK - reference_GK)
    return -((value_GK - value_GK.mean(1, keepdim=True)) * policy_GK).mean()


@pytest.mark.parametrize("buffer", ["on-policy", "ten steps stale", "reward-tilted"])
def test_a_tabular_policy_reaches_the_tilted_reference(buffer: str) -> None:
    tabular = Tabular()
    assert tabular.distance() > 0.1
    tabular.train(buffer, balanced)
    assert tabular.distance() < 1e-3


def test_plain_reinforce_reaches_it_on_policy_only() -> None:
    on_policy, off_policy = Tabular(), Tabular()
    on_policy.train("on-policy", plain_reinforce)
    off_policy.train("reward-tilted", plain_reinforce)
    assert on_policy.distance() < 1e-3
    assert off_policy.distance() > 0.1


@given(seed=seeds)
@settings(max_examples=20, deadline=None)
def test_any_positive_weights_of_prompts_leave_the_optimum_where_it_is(seed: int) -> None:
    """With all outcomes of every prompt, and parameters that prompts share: at the target the gradient of every prompt
    vanishes, so that of any weighted sum does; and where it does not vanish, weights cannot make a minimum of zero."""
    generator = torch.Generator().manual_seed(seed)
    shape = (NUM_PROMPTS, NUM_OUTCOMES)
    reference, reward, offset = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    reference = reference.log_softmax(-1)
    target = (reference + reward / BETA).log_softmax(-1)
    shared = torch.zeros(NUM_OUTCOMES, dtype=torch.float64, requires_grad=True)
    weight_G = torch.rand(NUM_PROMPTS, generator=generator, dtype=torch.float64) + 0.01

    def weighted(policy_GK: Tensor) -> Tensor:
        losses = [
            trajectory_balance(policy_GK[g : g + 1], reference[g : g + 1], reward[g : g + 1], beta=BETA).value
            for g in range(NUM_PROMPTS)
        ]
        return (weight_G * torch.stack(losses)).sum()

    at_target = weighted((target + shared).log_softmax(-1))
    assert float(at_target.detach()) < 1e-20
    assert torch.autograd.grad(at_target, shared)[0].abs().max() < 1e-10
    assert float(weighted((target + offset + shared).log_softmax(-1)).detach()) > 1e-6


def test_prompts_drawn_unevenly_reach_the_same_optimum() -> None:
    """Shares as far apart as 1 to 16, from exact expectations."""
    tabular = Tabular()
    weight_G = torch.tensor([1.0, 1 / 4, 1 / 16], dtype=torch.float64)
    optimizer = torch.optim.SGD([tabular.logits], lr=16.0)
    for _ in range(1_000):
        policy = tabular.logits.log_softmax(-1)
        losses = [
            trajectory_balance(policy[g : g + 1], tabular.reference[g : g + 1], tabular.reward[g : g + 1], beta=BETA)
            for g in range(NUM_PROMPTS)
        ]
        loss = (weight_G * torch.stack([found.value for found in losses])).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert tabular.distance() < 1e-6
