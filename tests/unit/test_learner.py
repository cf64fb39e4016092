"""The Learner: a step is the same however its groups are split, and it goes on where it was saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from trainer_cases import OBJECTIVES, ages, groups_with_copies, learner_in, mixed_ages, parameters

from tba.learn.base import StepResult
from tba.learn.learner import LocalLearner
from tba.policy.batch import pack
from tba.policy.policy import load_model
from tba.testing import save_tiny_model
from tba.types import Group

WHOLE = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


def gradients(learner: LocalLearner, groups: Sequence[Group]) -> tuple[StepResult, dict[str, Tensor]]:
    """What a step says, and the gradients it would have applied: of the policy and of what is learned beside it."""
    found: dict[str, Tensor] = {}
    modules = {"policy": learner.policy.model, **learner.objective.modules}

    def keep() -> tuple[float, bool]:
        for name, module in modules.items():
            for key, parameter in module.named_parameters():
                if parameter.grad is not None:
                    found[f"{name}.{key}"] = parameter.grad.clone()
                    parameter.grad = None
        return 0.0, True

    learner._update = keep  # type: ignore[method-assign]
    return learner.step(groups, mixed_ages(groups), 1), found


def norm(tensors: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors.values()))


def difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return norm({name: a[name] - b[name] for name in a}) / norm(b)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("attention", ["auto", "padded"])
@given(budget=st.integers(1, 120), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
@in_float64()
def test_any_split_of_groups_gives_the_same_gradient(
    tmp_path_factory: pytest.TempPathFactory, folder: str, attention: str, name: str, budget: int, seed: int
) -> None:
    groups = groups_with_copies(3, seed)
    found = []
    for max_tokens in (WHOLE, budget):
        learner = learner_in(
            tmp_path_factory.mktemp("run"),
            folder,
            attention=attention,
            objective=OBJECTIVES[name],
            micro_batch_tokens=max_tokens,
        )
        to_float64(learner.policy.model)
        for module in learner.objective.modules.values():
            module.double()
        found.append(gradients(learner, groups))
    (whole, whole_gradients), (split, split_gradients) = found
    assert norm(whole_gradients) > 1e-3
    assert difference(split_gradients, whole_gradients) < 1e-10
    assert split.loss == pytest.approx(whole.loss, rel=1e-10)
    assert_close(split.advantage_GK, whole.advantage_GK, rtol=1e-9, atol=1e-9)
    assert split.metrics == pytest.approx(whole.metrics, rel=1e-9)


@pytest.mark.parametrize("name", ["tapered", "learned log Z, masked"])
@pytest.mark.parametrize("budget", [13, 60])
@in_float64()
def test_so_it_does_with_adapters_and_an_offset(tmp_path: Path, folder: str, name: str, budget: int) -> None:
    """The step before measures the offset, and its own split must not show in it either."""
    groups = groups_with_copies(3, 7)
    found = []
    for max_tokens in (WHOLE, budget):
        run = tmp_path / str(max_tokens)
        learner = learner_in(run, folder, objective=OBJECTIVES[name], lora_rank=4, micro_batch_tokens=max_tokens)
        to_float64(learner.policy.model)
        for module in learner.objective.modules.values():
            module.double()
        step, _ = gradients(learner, groups)
        found.append(gradients(learner, groups))
        assert step.metrics["stale/offset"] == 0.0
        assert found[-1][0].metrics["stale/offset"] < -1
        assert 0 < found[-1][0].metrics["stale/weighed"] < 1
    (whole, whole_gradients), (split, split_gradients) = found
    assert difference(split_gradients, whole_gradients) < 1e-10
    assert split.metrics == pytest.approx(whole.metrics, rel=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_in_float32_a_split_moves_the_gradient_by_its_rounding(
    tmp_path: Path, folder: str, name: str, pytestconfig: pytest.Config
) -> None:
    """Kernels move it by 1e-6 to 2e-6 of its norm. Made-up rounding, which adds to every sum and product what the worst
    order of its terms could, moves it by up to 1.3e-5."""
    groups = groups_with_copies(4, 0)
    learners = [
        learner_in(tmp_path / str(budget), folder, objective=OBJECTIVES[name], micro_batch_tokens=budget)
        for budget in (WHOLE, 40)
    ]
    (_, whole), (_, split) = (gradients(learner, groups) for learner in learners)
    assert difference(split, whole) < (1e-5 if pytestconfig.getoption("--rounding-seed") is None else 4e-5)


@in_float64()
def test_comparing_the_parts_of_a_group_apart_would_show(tmp_path: Path, folder: str) -> None:
    """The companion of the laws above: parts that are treated as groups of their own give another gradient."""
    [group] = groups_with_copies(1, 3)
    halves = [Group(group.prompt, group.trajectories[:3]), Group(group.prompt, group.trajectories[3:])]
    learners = [learner_in(tmp_path / str(i), folder, micro_batch_tokens=WHOLE) for i in range(2)]
    for learner in learners:
        to_float64(learner.policy.model)
    (_, whole), (_, apart) = gradients(learners[0], [group]), gradients(learners[1], halves)
    assert difference(apart, whole) > 0.01


def test_groups_larger_than_the_budget_are_computed_in_parts(tmp_path: Path, folder: str) -> None:
    """The budget bounds what is computed at once; a single response that is longer goes alone."""
    learner = learner_in(tmp_path, folder, micro_batch_tokens=30)
    seen: list[int] = []
    learner.policy.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].num_tokens))
    learner.step(groups := groups_with_copies(2, 1), ages(groups), 1)
    assert max(seen) <= 30
    assert len(seen) > 4


def test_results_are_in_the_order_of_the_groups(tmp_path: Path, folder: str) -> None:
    """Groups are computed in order of length; nobody outside knows."""
    groups = groups_with_copies(4, 5)
    results = []
    for name, given_groups in (("a", groups), ("b", groups[::-1])):
        results.append(learner_in(tmp_path / name, folder, micro_batch_tokens=50).step(given_groups, ages(groups), 1))
    assert_close(results[0].advantage_GK, results[1].advantage_GK[::-1].copy(), rtol=1e-4, atol=1e-4)
    assert np.abs(results[0].advantage_GK - results[1].advantage_GK).max() > 0.01


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_goes_on_where_it_was_saved(tmp_path: Path, folder: str, name: str) -> None:
    def learner(run: str) -> LocalLearner:
        settings = {"schedule": "linear", "num_steps": 10, "warmup_steps": 2}
        return learner_in(tmp_path / run, folder, objective=OBJECTIVES[name], **settings)

    groups = [groups_with_copies(2, seed) for seed in range(5)]
    straight, resumed = learner("straight"), learner("resumed")
    for step in range(3):
        straight.step(groups[step], ages(groups[step]), step + 1)
    straight.save(tmp_path / "saved")
    resumed.step(groups[4], ages(groups[4]), 1)  # whatever it was doing before
    resumed.load(tmp_path / "saved")
    for step in (3, 4):
        one, other = (x.step(groups[step], mixed_ages(groups[step]), step + 1) for x in (straight, resumed))
        assert one.loss == other.loss
        assert one.metrics == other.metrics
        assert one.learning_rate == other.learning_rate
    assert_close(parameters(resumed.policy.model), parameters(straight.policy.model), rtol=0, atol=0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_learns_what_was_rewarded(tmp_path: Path, folder: str, name: str) -> None:
    """On data that the policy itself has drawn, and then on the same data as they grow stale. It is the reference."""
    learner = learner_in(tmp_path, folder, objective=OBJECTIVES[name])
    groups = [with_reference_as_sampler(sampled_with(learner, group)) for group in groups_with_copies(3, 4)]

    def preference() -> float:
        """How the log-probability of a response goes with its reward."""
        reward = np.array([[t.reward for t in group.trajectories] for group in groups])
        own = [[t.response.logprob for t in sampled_with(learner, group).trajectories] for group in groups]
        return float(((reward - reward.mean(1, keepdims=True)) * np.array(own)).mean())

    before = preference()
    for step in range(6):
        assert learner.step(groups, ages(groups) + step, step + 1).updated
    assert preference() > before + 0.1


def test_a_gradient_that_is_not_finite_beside_the_policy_leaves_everything(tmp_path: Path, folder: str) -> None:
    learner = learner_in(tmp_path, folder, objective=OBJECTIVES["learned log Z"])
    groups = groups_with_copies(2, 0)
    learner.step(groups, ages(groups), 1)
    before = parameters(learner.policy.model)
    [*_, bias] = learner.objective.modules["log_z"].parameters()
    bias.register_hook(lambda gradient: gradient * math.nan)
    result = learner.step(groups, ages(groups), 2)
    assert math.isfinite(result.grad_norm)
    assert not result.updated
    assert_close(parameters(learner.policy.model), before, rtol=0, atol=0)
    assert bool(torch.isfinite(bias).all())


@pytest.mark.parametrize("budget", [WHOLE, 40], ids=["whole", "in parts"])
def test_the_gap_is_what_recorded_logprobs_are_off_by(tmp_path: Path, folder: str, budget: int) -> None:
    """An engine that is right to rounding, and one that is off by a known amount in one trajectory."""
    learner = learner_in(tmp_path, folder, micro_batch_tokens=budget)
    groups = [sampled_with(learner, group) for group in groups_with_copies(3, 2)]
    right = learner.step(groups, ages(groups), 1)
    # A sum of sixteen products and a softmax over 64 tokens: a few dozen roundings of numbers up to 8.
    assert right.largest_gap_GK.max() < 100 * 8 * 2**-24
    assert right.gap_GK.shape == right.advantage_GK.shape

    learner = learner_in(tmp_path / "again", folder, micro_batch_tokens=budget)
    found = learner.step([groups[0], first_token_off(groups[1], 2, 0.25), groups[2]], ages(groups), 1)
    expected = np.zeros_like(found.gap_GK)
    expected[1, 2] = 0.25
    assert_close(found.largest_gap_GK, expected, rtol=0, atol=1e-4)
    expected[1, 2] /= len(groups[1].trajectories[2].response)
    assert_close(found.gap_GK, expected, rtol=0, atol=1e-4)


def sampled_with(learner: LocalLearner, group: Group) -> Group:
    """The group, as if the learner's own policy had drawn it."""
    responses = [t.response for t in group.trajectories]
    with torch.no_grad():
        found = [learner.policy(pack([(group.prompt, [response])])).tokens_T.numpy() for response in responses]
    return with_logprobs(group, found)


def with_reference_as_sampler(group: Group) -> Group:
    views = (replace(t, reference_token_logprobs=t.response.token_logprobs) for t in group.trajectories)
    return replace(group, trajectories=tuple(views))


def first_token_off(group: Group, trajectory: int, by: float) -> Group:
    logprobs = [t.response.token_logprobs.copy() for t in group.trajectories]
    logprobs[trajectory][0] -= by
    return with_logprobs(group, logprobs)


def with_logprobs(group: Group, logprobs: Sequence[np.ndarray]) -> Group:
    pairs = zip(group.trajectories, logprobs, strict=True)
    return replace(
        group, trajectories=tuple(replace(t, response=replace(t.response, token_logprobs=found)) for t, found in pairs)
    )


def test_in_bfloat16_what_is_trained_stays_float32(tmp_path: Path, folder: str) -> None:
    groups = groups_with_copies(3, 2)
    exact, rough = (learner_in(tmp_path / name, folder, bf16=name == "b") for name in ("a", "b"))
    results = [learner.step(groups, ages(groups), 1) for learner in (exact, rough)]
    before = parameters(load_model(folder))
    assert not np.array_equal(results[0].advantage_GK, results[1].advantage_GK), "bfloat16 was really used"
    for tensors in (parameters(rough.policy.model), rough._optimization.tensors()):
        assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float32}
    # AdamW's first step is the sign of the gradient times the rate, and nearly all signs agree.
    moves = [
        torch.cat([(after - before[name]).flatten() for name, after in parameters(learner.policy.model).items()])
        for learner in (exact, rough)
    ]
    assert torch.cosine_similarity(moves[0], moves[1], dim=0) > 0.9
