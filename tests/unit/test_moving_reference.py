"""A reference that follows the policy: reset to it from time to time, or the mean of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from torch import Tensor
from torch.testing import assert_close
from trainer_cases import ages, groups_with_copies, learner_in, parameters

from tba.learn.learner import LocalLearner
from tba.learn.moving_reference import MovingReference
from tba.objectives import Evidence, Loss
from tba.policy.policy import Policy, Reference
from tba.testing import save_tiny_model
from tba.types import Group, TbaError

LENGTHS = {"whole": 100_000, "in parts": 40}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


class Watched:
    """An objective that keeps the evidence it was shown."""

    def __init__(self, objective: Any) -> None:
        self._objective = objective
        self.seen: list[Evidence] = []

    def __call__(self, evidence: Evidence) -> Loss:
        self.seen.append(evidence)
        loss: Loss = self._objective(evidence)
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objective, name)


def learner_of(
    run: Path, folder: str, moving: Mapping[str, Any], *, double: bool = False, **settings: Any
) -> LocalLearner:
    run.mkdir(exist_ok=True)
    learner = learner_in(run, folder, **settings)
    if double:
        to_float64(learner.policy.model)
    if moving:
        learner._moving_reference = MovingReference(learner.policy, **moving)
    learner.objective = Watched(learner.objective)  # type: ignore[assignment]
    return learner


def unread(groups: list[Group]) -> list[Group]:
    """As they come from Searchers that have no reference, when it moves."""
    nothing = np.float32(np.nan)
    return [
        replace(
            g,
            trajectories=tuple(
                replace(t, reference_token_logprobs=np.full(len(t.response), nothing)) for t in g.trajectories
            ),
        )
        for g in groups
    ]


def step(learner: LocalLearner, number: int) -> list[Evidence]:
    """Make this step on groups of its own; what the objective saw."""
    groups = unread(groups_with_copies(3, number, 4))
    watched: Any = learner.objective
    watched.seen.clear()
    assert learner.step(groups, ages(groups), number).updated
    return list(watched.seen)


def log_ratios(seen: list[Evidence]) -> Tensor:
    """Of every trajectory, which are the sums of those of its tokens."""
    return torch.cat([(evidence.policy_GK.detach() - evidence.reference_GK).flatten() for evidence in seen])


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("attention", ["auto", "padded"])
@pytest.mark.parametrize("budget", LENGTHS.values(), ids=LENGTHS)
def test_right_after_a_reset_every_log_ratio_is_0(
    tmp_path: Path, folder: str, lora_rank: int, attention: str, budget: int
) -> None:
    if lora_rank:
        pytest.importorskip("peft")
    learner = learner_of(
        tmp_path, folder, {"reset_period": 3}, lora_rank=lora_rank, attention=attention, micro_batch_tokens=budget
    )
    largest = [float(log_ratios(step(learner, number)).abs().max()) for number in range(1, 9)]
    is_zero = [value == 0 for value in largest]
    # Adapters begin as nothing, and the first step of theirs changes what is multiplied by it.
    assert is_zero == [True, False, False] * 2 + [True, False]


@in_float64()
def test_between_resets_it_is_a_frozen_copy(tmp_path: Path, folder: str) -> None:
    """As a second model with the policy's weights of the last reset reads the same responses."""
    learner = learner_of(tmp_path, folder, {"reset_period": 2}, double=True)
    model = learner.policy.model
    copies = [deepcopy(model)]
    for number in range(1, 6):
        [seen] = step(learner, number)
        groups = groups_with_copies(3, number, 4)
        frozen = Reference(Policy(copies[(number - 1) // 2], temperature=0.8), max_tokens=1_000)
        in_order = sorted(groups, key=lambda group: group.num_tokens)
        read = frozen.token_logprobs([(g.prompt, [t.response for t in g.trajectories]) for g in in_order])
        expected = np.concatenate([r for row in read for r in row])
        assert_close(seen.reference_J, torch.from_numpy(expected), rtol=0, atol=1e-10)
        if number % 2 == 0:
            copies.append(deepcopy(model))


@in_float64()
def test_the_mean_of_weights_has_its_closed_form(tmp_path: Path, folder: str) -> None:
    learner = learner_of(tmp_path, folder, {"ema": 0.7}, double=True)
    weights = [parameters(learner.policy.model)]
    for number in range(1, 4):
        step(learner, number)
        weights.append(parameters(learner.policy.model))
    assert learner._moving_reference is not None
    found = learner._moving_reference.tensors()
    first, *later = weights
    for name, start in first.items():
        mean = 0.7**3 * start + 0.3 * sum(0.7 ** (3 - i) * now[name] for i, now in enumerate(later, 1))
        assert_close(found[f"model.{name}"], mean, rtol=0, atol=1e-12)
    assert not torch.equal(later[-1][name], first[name]), "else this tests nothing"


@pytest.mark.parametrize("moving", [{"reset_period": 2}, {"ema": 0.5}], ids=["reset", "mean"])
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_learner_that_is_loaded_goes_on_bit_for_bit(
    tmp_path: Path, folder: str, moving: Mapping[str, Any], lora_rank: int
) -> None:
    if lora_rank:
        pytest.importorskip("peft")
    one, other = (learner_of(tmp_path / name, folder, moving, lora_rank=lora_rank) for name in ("one", "other"))
    for number in (1, 2, 3):
        step(one, number)
    one.save(tmp_path / "saved")
    other.load(tmp_path / "saved")
    for number in (4, 5, 6):
        assert torch.equal(log_ratios(step(one, number)), log_ratios(step(other, number)))
    assert_close(parameters(one.policy.model), parameters(other.policy.model), rtol=0, atol=0)


def test_a_reference_that_begins_to_move_at_a_resume_is_the_first_model_until_then(tmp_path: Path, folder: str) -> None:
    fixed, moving = (learner_of(tmp_path / str(m), folder, {"ema": 0.5} if m else {}) for m in (False, True))
    first = parameters(fixed.policy.model)
    groups = groups_with_copies(2, 0)
    fixed.step(groups, ages(groups), 1)
    fixed.save(tmp_path / "saved")
    moving.load(tmp_path / "saved")
    assert moving._moving_reference is not None
    found = {name.removeprefix("model."): value for name, value in moving._moving_reference.tensors().items()}
    assert_close(found, first, rtol=0, atol=0)


def test_one_that_is_to_stay_from_a_resume_on_is_refused(tmp_path: Path, folder: str) -> None:
    """The data that were merged have been read by no reference."""
    moving, fixed = (learner_of(tmp_path / str(m), folder, {"ema": 0.5} if m else {}) for m in (True, False))
    moving.save(tmp_path / "saved")
    with pytest.raises(TbaError, match=r"keep reference\.reset_period or reference\.ema"):
        fixed.load(tmp_path / "saved")


def test_groups_are_not_read_before_they_are_trained_on(tmp_path: Path, folder: str) -> None:
    learner = learner_of(tmp_path, folder, {"ema": 0.5})
    [group] = groups_with_copies(1, 0)
    [views] = learner.reference_logprobs([(group.prompt, [t.response for t in group.trajectories])])
    assert all(np.isnan(view).all() for view in views)
    assert [len(view) for view in views] == [len(t.response) for t in group.trajectories]


@pytest.mark.parametrize("forgets", [False, True])
def test_the_optimizer_may_forget_its_moments_at_a_reset(tmp_path: Path, folder: str, forgets: bool) -> None:
    learner = learner_of(tmp_path, folder, {"reset_period": 2})
    learner._reset_optimizer = forgets
    num_moments = []
    for number in (1, 2, 3):
        step(learner, number)
        num_moments.append(len(learner._optimization.tensors()))
    assert num_moments[0] == num_moments[2] > 0
    assert num_moments[1] == (0 if forgets else num_moments[0])
