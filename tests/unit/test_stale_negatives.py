"""Weights on stale negatives: what they are, that they never touch fresh data, and how they add up over passes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import evidence_of, random_evidence, seeds
from torch import Tensor
from torch.testing import assert_close

from benchmarks.stale_length import DEFAULT_FORM, LONG, SHORT, share_removed
from tba.objectives import Evidence, Loss, Objective, as_recorded
from tba.objectives.sampling_offset import KEPT, SamplingOffset
from tba.objectives.stale_negatives import (
    FLOOR,
    drift_per_token,
    drift_since_sampling,
    removed_by,
    stale_weights,
)
from tba.objectives.trajectory_balance import Settings as VarGrad
from tba.objectives.trajectory_balance_learned_z import Settings as LearnedLogZ

HOWS = ("taper", "mask", "keep")
FORMS: dict[str, type[Any]] = {"VarGrad": VarGrad, "learned log Z": LearnedLogZ}


def objective_of(form: str = "VarGrad", **settings: Any) -> Objective:
    made: Objective = FORMS[form](beta=0.1, **settings).build(num_steps=10, hidden_size=4)
    for module in made.modules.values():
        module.double()
    return made


def gradient(objective: Objective, evidence: Evidence, leaf: Tensor) -> tuple[Loss, Tensor]:
    loss = objective(evidence)
    return loss, torch.autograd.grad(loss.value, leaf, retain_graph=True)[0]


# ---------------------------------------------------------------------------------------------------------------------
# The weights themselves
# ---------------------------------------------------------------------------------------------------------------------


def row(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        ("taper", [1.0, 1.0, 1.0, math.exp(-0.5), math.exp(-1.0), math.exp(-2.0)]),
        ("mask", [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
        ("keep", [1.0] * 6),
    ],
)
def test_the_weights_by_hand(how: Any, wanted: list[float]) -> None:
    """With a threshold of 1/16, which floats hold exactly: at the threshold itself the mask keeps."""
    advantage = row(0.3, 0.0, -0.3, -0.3, -0.3, -0.3)
    drift = row(-0.2, -0.2, 0.2, -1 / 32, -1 / 16, -1 / 8)
    assert_close(stale_weights(advantage, drift, how, 1 / 16), row(*wanted), rtol=1e-12, atol=0)


@given(seed=seeds, threshold=st.floats(1e-3, 10))
@settings(max_examples=40, deadline=None)
def test_weights_are_between_0_and_1_and_below_1_only_for_negatives_that_went_down(seed: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    advantage, drift = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    for how in ("taper", "mask"):
        weight = stale_weights(advantage, drift, how, threshold)
        assert bool(((weight >= 0) & (weight <= 1)).all())
        assert bool((weight[(advantage >= 0) | (drift >= 0)] == 1).all())
    taper = stale_weights(advantage, drift, "taper", threshold)
    assert bool((taper > 0).all()) or threshold < 0.01, "a taper is positive, but for underflow"


def test_at_twenty_tokens_the_taper_is_the_ratio_of_the_whole_response() -> None:
    log_ratio, length = row(-0.4, -3.0), torch.tensor([[20, 20]])
    for form in ("mean", "sum"):
        m = drift_per_token(log_ratio, length, form)  # type: ignore[arg-type]
        assert_close(stale_weights(row(-1, -1), m, "taper", 0.05), log_ratio.exp(), rtol=1e-12, atol=0)


def test_the_mean_does_not_depend_on_length_and_the_sum_does() -> None:
    length = torch.tensor([[6, 40, 160, 640]])
    drift = -0.02 * length
    assert_close(drift_per_token(drift.double(), length), row(*[-0.02] * 4))
    assert_close(drift_per_token(drift.double(), length, "sum"), row(-0.006, -0.04, -0.16, -0.64))


@pytest.mark.parametrize("how", ["taper", "mask"])
def test_the_default_removes_the_same_share_at_every_length(how: Any) -> None:
    """With the same distribution of drift per token, which has a spread between tokens too."""
    default, summed = (
        [share_removed(how, form, length, 4_000) for length in (SHORT, LONG)] for form in (DEFAULT_FORM, "sum")
    )
    assert default[1] == pytest.approx(default[0], rel=0.2)
    assert summed[1] > 1.4 * summed[0]


def test_very_short_responses_count_as_longer_ones() -> None:
    length = torch.tensor([[1, 2, FLOOR, 2 * FLOOR]])
    assert_close(drift_per_token(row(-0.6, -0.6, -0.6, -0.6), length), row(-0.1, -0.1, -0.1, -0.05))
    assert_close(drift_per_token(row(-0.6, -0.6, -0.6, -0.6), length, floor=1), row(-0.6, -0.3, -0.1, -0.05))


def test_fresh_trajectories_have_no_drift_by_their_age() -> None:
    """Whatever their ratio says: kernels differ by rounding, precisions by more."""
    found = drift_since_sampling(row(-3.0, -3.0, 1e-7), torch.tensor([[4, 4, 4]]), torch.tensor([[0, 1, 0]]), -0.25)
    assert found.tolist() == [[0.0, -2.0, 0.0]]


def test_what_the_weights_of_a_step_take_away() -> None:
    weight, advantage = np.array([[1.0, 0.5], [0.0, 1.0]]), np.array([[2.0, -1.0], [-0.5, 0.5]])
    assert removed_by(weight, advantage) == ((0.5 + 0.5) / 4, 0.5)
    assert removed_by(np.ones((1, 2)), np.zeros((1, 2))) == (0.0, 0.0)


# ---------------------------------------------------------------------------------------------------------------------
# In the objective
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["taper", "mask"])
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_on_fresh_data_nothing_changes_bit_for_bit(form: str, how: str, seed: int) -> None:
    evidence, leaf = random_evidence(seed, oldest=0)
    plain, plain_gradient = gradient(objective_of(form, stale_negatives="keep"), evidence, leaf)
    weighed, weighed_gradient = gradient(objective_of(form, stale_negatives=how), evidence, leaf)
    assert torch.equal(weighed.value, plain.value)
    assert torch.equal(weighed_gradient, plain_gradient)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", HOWS)
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_the_gradient_is_that_of_weighed_advantages(form: str, how: str, seed: int) -> None:
    """−mean(w A ∇ log π), and for a learned log Z −mean(A), unweighed; the number of the loss is the plain one."""
    evidence, leaf = random_evidence(seed)
    objective = objective_of(form, stale_negatives=how)
    loss, found = gradient(objective, evidence, leaf)
    pushed = loss.values_GK["weight"] * loss.advantage_GK
    assert_close(found, -evidence.per_token(pushed) / pushed.numel(), rtol=1e-10, atol=1e-12)
    assert torch.equal(loss.value, objective_of(form, stale_negatives="keep")(evidence).value)
    if form == "learned log Z":
        bias = objective.modules["log_z"].linear.bias
        [to_log_z] = torch.autograd.grad(loss.value, bias)
        assert_close(to_log_z, -loss.advantage_GK.mean().view(1), rtol=1e-10, atol=1e-12)


def test_a_masked_trajectory_has_no_gradient_at_all() -> None:
    evidence, leaf = random_evidence(3, drift=1.0)
    loss, found = gradient(objective_of(stale_negatives="mask"), evidence, leaf)
    masked = evidence.per_token(loss.values_GK["weight"]) == 0
    assert 0 < int(masked.sum()) < len(masked)
    assert not found[masked].any()
    assert bool((found[~masked] != 0).all())


def test_log_z_is_that_of_all_trajectories() -> None:
    evidence, _ = random_evidence(3, drift=1.0)
    masked, plain = (objective_of(stale_negatives=how)(evidence).values_GK["log_z"] for how in ("mask", "keep"))
    assert torch.equal(masked, plain)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["taper", "mask"])
@given(seed=seeds)
@settings(max_examples=10, deadline=None)
def test_the_passes_of_a_step_add_up(form: str, how: str, seed: int) -> None:
    """Also once there is an offset, which every pass of a step has to see alike."""
    remedies = {"stale_negatives": how, "anchor": 0.1, "baseline_shift": 0.1, "proximal": 0.05}
    whole, leaf = random_evidence(seed, (3, 4))
    objective = objective_of(form, **remedies)
    objective.restore({"offset_sum": -0.3, "offset_count": 10.0})
    loss, found = gradient(objective, whole, leaf)
    parts = [gradient(objective, part_of(whole, group), leaf) for group in range(3)]
    assert_close(sum(part.value for part, _ in parts), loss.value, rtol=1e-10, atol=1e-12)
    assert_close(torch.stack([part for _, part in parts]).sum(0), found, rtol=1e-10, atol=1e-12)


def part_of(evidence: Evidence, group: int) -> Evidence:
    """One group of a step, as a pass of its own."""
    K = evidence.shape[1]
    mine = evidence.trajectory_J // K == group
    tokens = {name: getattr(evidence, name)[mine] for name in ("policy_J", "behaviour_J", "reference_J", "position_J")}
    of_groups = ("reward_GK", "age_GK", "length_GK", "on_policy_GK", "prompt_GH")
    rows = {name: getattr(evidence, name)[group : group + 1] for name in of_groups}
    return replace(evidence, trajectory_J=evidence.trajectory_J[mine] - group * K, **tokens, **rows)


def test_metrics_tell_what_was_removed() -> None:
    evidence, _ = random_evidence(3, drift=1.0)
    objective = objective_of(stale_negatives="mask")
    loss = objective(evidence)
    found = objective.metrics(1, {name: value.double().numpy() for name, value in loss.values_GK.items()})
    weight, size = loss.values_GK["weight"], loss.advantage_GK.abs()
    assert 0 < found["stale/removed"] < 1
    assert found["stale/removed"] == pytest.approx(float(((1 - weight) * size).sum() / size.sum()))
    assert found["stale/weighed"] == pytest.approx(float((weight == 0).double().mean()))
    kept = objective_of(stale_negatives="keep")
    loss = kept(evidence)
    found = kept.metrics(1, {name: value.double().numpy() for name, value in loss.values_GK.items()})
    assert (found["stale/removed"], found["stale/weighed"]) == (0.0, 0.0)


def test_a_run_weighs_them_unless_it_is_of_before_there_were_weights() -> None:
    assert VarGrad().stale_negatives == LearnedLogZ().stale_negatives == "mask"
    for kind in ("trajectory_balance", "trajectory_balance_learned_z"):
        assert as_recorded({"kind": kind})["stale_negatives"] == "keep"
        assert as_recorded({"kind": kind, "stale_negatives": "taper"})["stale_negatives"] == "taper"
    assert "stale_negatives" not in as_recorded({"kind": "grpo"})
    with pytest.raises(ValueError, match="stale_threshold"):
        VarGrad(stale_threshold=0.0)


# ---------------------------------------------------------------------------------------------------------------------
# The offset of the sampler
# ---------------------------------------------------------------------------------------------------------------------


def two_trajectories(per_token: float, *, age: int, on_policy: bool = True, wrong_drift: float = 0.0) -> Evidence:
    """A right and a wrong answer, with a sampler that is off by so many nats per token; the wrong one has drifted."""
    policy = [[torch.full((8,), -1.0, dtype=torch.float64), torch.full((12,), -2.0, dtype=torch.float64)]]
    behaviour = [[[-1.0 - per_token] * 8, [-2.0 - per_token - wrong_drift] * 12]]
    reference = [[[-1.0] * 8, [-2.0] * 12]]
    return evidence_of(policy, behaviour, reference, [[1.0, 0.0]], age=[[age, age]], on_policy=on_policy)


def take_step(objective: Objective, evidence: Evidence) -> Loss:
    loss = objective(evidence)
    objective.after_step({name: value.double().numpy() for name, value in loss.values_GK.items()})
    return loss


def offset_of(objective: Objective) -> float:
    state = objective.state()
    return state["offset_sum"] / state["offset_count"] if state["offset_count"] else 0.0


def test_an_offset_that_fresh_data_show_is_taken_out_of_stale_data() -> None:
    objective = objective_of(stale_negatives="taper", stale_threshold=0.05)
    stale = two_trajectories(-0.2, age=3, wrong_drift=-0.05)
    before = take_step(objective, stale)
    assert before.values_GK["weight"][0, 1] == pytest.approx(math.exp(-5)), "nothing was measured yet"
    assert offset_of(objective) == 0.0, "stale data measure nothing"
    fresh = take_step(objective, two_trajectories(-0.2, age=0))
    assert fresh.values_GK["weight"].tolist() == [[1.0, 1.0]]
    assert offset_of(objective) == pytest.approx(-0.2)
    assert objective(stale).values_GK["weight"][0, 1] == pytest.approx(math.exp(-1)), "its drift alone"


def test_it_does_not_count_within_the_step_that_measured_it() -> None:
    objective = objective_of(stale_negatives="taper", stale_threshold=0.05)
    stale = two_trajectories(-0.2, age=3)
    objective(two_trajectories(-0.2, age=0))
    assert objective(stale).values_GK["weight"][0, 1] == pytest.approx(math.exp(-4)), "another pass of the same step"


def test_exploration_at_another_temperature_is_not_measured() -> None:
    objective = objective_of(stale_negatives="taper")
    take_step(objective, two_trajectories(-1.0, age=0, on_policy=False))
    assert offset_of(objective) == 0.0
    take_step(objective, two_trajectories(-0.2, age=0))
    assert offset_of(objective) == pytest.approx(-0.2)


def test_the_running_mean_forgets_and_survives_a_checkpoint() -> None:
    offset, again = SamplingOffset(), SamplingOffset()
    fresh = np.array([[True, True, False]])
    offset.measure(np.array([[-0.1, -0.3, 9.0]]), fresh)
    assert offset.per_token == pytest.approx(-0.2)
    offset.measure(np.array([[0.0, np.nan, 9.0]]), fresh)
    assert offset.per_token == pytest.approx(KEPT * -0.4 / (KEPT * 2 + 1)), "a number that is none does not count"
    before = offset.per_token
    offset.measure(np.array([[5.0, 5.0, 5.0]]), ~np.ones((1, 3), bool))
    assert offset.per_token == before
    again.restore(offset.state())
    assert again.per_token == before
    again.restore({})
    assert again.per_token == 0.0, "a checkpoint of an earlier version has none"
