from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from float64 import in_float64, to_float64
from torch.testing import assert_close
from trainer_cases import GROUP_SIZE, model_of, parameters, random_groups, trainer_in

from tba.buffer.log import RolloutLog
from tba.channels.base import Message
from tba.channels.inline import InlineGroups, InlineWeights
from tba.learn.checkpoint import list_checkpoints
from tba.learn.trainer import NO_GROUPS_STEPS, NO_GROUPS_SYNCS, Trainer
from tba.runs.activity import Activity
from tba.runs.metrics import read_metrics
from tba.testing import save_tiny_model
from tba.types import Group, Report


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("attention", ["auto", "padded"])
@in_float64()
def test_a_step_is_the_same_however_its_groups_are_split(tmp_path: Path, folder: str, attention: str) -> None:
    """Whole, group by group, and in between: same numbers, same update."""
    groups = random_groups(5)
    found = []
    for budget in (1, 70, 100_000):
        trainer = trainer_in(tmp_path / str(budget), folder, attention=attention, micro_batch_tokens=budget)
        to_float64(model_of(trainer))
        trainer.step = 4
        before = parameters(model_of(trainer))
        metrics = trainer.train_step(groups)
        found.append((metrics, parameters(model_of(trainer))))
    whole_metrics, whole_parameters = found[-1]
    assert all(not torch.equal(whole_parameters[name], before[name]) for name in before), "a step moves every weight"
    for metrics, updated in found[:-1]:
        assert metrics.keys() == whole_metrics.keys()
        for name, value in metrics.items():
            expected = whole_metrics[name]
            assert value == (pytest.approx(expected, rel=1e-9) if isinstance(value, float) else expected), name
        # Adam divides by the gradient's size plus 1e-8: where a gradient is nothing but rounding, so is what is left.
        assert_close(updated, whole_parameters, rtol=0, atol=1e-7)


def test_steps_lower_the_loss_on_the_same_groups(tmp_path: Path, folder: str) -> None:
    trainer = trainer_in(tmp_path / "run", folder)
    groups = random_groups(4)
    losses = [trainer.train_step(groups)["loss"] for _ in range(15)]
    assert losses[-1] < losses[0] / 2
    assert trainer.step == 15
    assert trainer.tokens_trained == 15 * sum(group.num_tokens for group in groups)


def test_a_gradient_that_is_not_finite_leaves_the_weights(tmp_path: Path, folder: str) -> None:
    trainer = trainer_in(tmp_path / "run", folder)
    before = parameters(model_of(trainer))
    metrics = trainer.train_step(random_groups(2, reward=math.inf))
    assert not math.isfinite(metrics["grad_norm"])
    assert_close(parameters(model_of(trainer)), before, rtol=0, atol=0)
    assert [record["event"] for record in read_metrics(tmp_path / "run")] == ["gradient_not_finite"]
    trainer.train_step(random_groups(2))
    assert any(not torch.equal(parameter, before[name]) for name, parameter in model_of(trainer).named_parameters())


def test_staleness_is_counted_from_the_version_that_is_trained(tmp_path: Path, folder: str) -> None:
    fresh, old = random_groups(1, version=7, seed=1), random_groups(1, version=2, seed=2)

    def step_on(name: str, groups: list[Group]) -> dict[str, Any]:
        trainer = trainer_in(tmp_path / name, folder)
        trainer.step = 7
        metrics = trainer.train_step(groups)
        assert trainer.step == 8
        return metrics

    metrics = step_on("both", [*fresh, *old])
    assert metrics["staleness/counts"] == {"0": GROUP_SIZE, "5": GROUP_SIZE}
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (2.5, 5)
    # The residual of an age is that of a step on its data alone: β times the root mean square of δ.
    for name, groups in (("0", fresh), ("3-5", old)):
        alone = step_on(name, groups)
        assert metrics[f"residual/staleness_{name}"] == pytest.approx(alone["beta"] * alone["residual_rms"], rel=1e-4)


@pytest.mark.parametrize("num_fresh", [0, 1])
def test_a_stop_while_it_waits_for_fresh_groups_saves_and_ends(tmp_path: Path, folder: str, num_fresh: int) -> None:
    """In synchronous mode the Trainer spends most of its time so; Ctrl-C must find a checkpoint written."""
    trainer = trainer_in(tmp_path / "run", folder, synchronous=True, sync_period=1, num_steps=10)
    weights = trainer.weights
    assert isinstance(weights, InlineWeights)
    rounds = iter([random_groups(2, version=0), random_groups(num_fresh, version=1)])

    class Searching(InlineGroups):
        """Hands up another round when it is waited for."""

        def receive(self, wait: bool = False) -> list[Message]:
            for i, group in enumerate(next(rounds, []) if wait else []):
                self.send(Group(group.prompt, group.trajectories, "searcher-0", 100 * trainer.step + i + 1))
            trainer.stop_requested = wait and trainer.step == 1
            return super().receive(wait)

    trainer.groups = Searching()
    trainer.run()
    assert trainer.step == 1
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run")] == [1]
    assert weights.closed
    assert not weights.finished


class Sent(InlineGroups):
    """At each sync, groups of the steps that are named come up."""

    def __init__(self, trainer: Trainer, steps: Collection[int]) -> None:
        super().__init__()
        self._trainer = trainer
        self._steps = steps

    def receive(self, wait: bool = False) -> list[Message]:
        step = self._trainer.step
        for i, group in enumerate(random_groups(2, version=step) if step in self._steps else []):
            self.send(replace(group, serial=100 * step + i + 1))
        return super().receive(wait)


def told_steps(run: Path) -> list[int]:
    return [r["step"] for r in read_metrics(run) if r.get("event") == "no_new_groups"]


@pytest.mark.parametrize(
    ("sync_period", "steps_with_groups", "told"),
    [
        (1, range(200), []),
        (1, [0, 3], [3 + NO_GROUPS_STEPS]),
        (1, [0, 60], [NO_GROUPS_STEPS, 60 + NO_GROUPS_STEPS]),
        (10, [0, 20], [20 + 10 * NO_GROUPS_SYNCS]),
    ],
)
def test_that_no_new_groups_come_is_told_once_until_one_comes(
    tmp_path: Path, folder: str, sync_period: int, steps_with_groups: Collection[int], told: list[int]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    trainer = trainer_in(run, folder, sync_period=sync_period, num_steps=150)
    trainer.groups = Sent(trainer, steps_with_groups)

    def make_step() -> None:
        trainer.step += 1

    trainer.make_step = make_step  # type: ignore[method-assign] # what it learns does not matter
    with Activity(run, "searcher-0")("generate", "8 prompts × 16"):
        trainer.begin()
        while not trainer.done:
            trainer.advance()
    assert told_steps(run) == told
    messages = [r["message"] for r in read_metrics(run) if r.get("event") == "no_new_groups"]
    assert all("searcher-0: generating 8 prompts × 16" in message for message in messages)


class NeverHungUp(InlineGroups):
    """A Searcher that does not end: it sends a report whenever it is waited for."""

    is_open = True

    def __init__(self, on_wait: Callable[[int], None]) -> None:
        super().__init__()
        self.num_waits = 0
        self._on_wait = on_wait

    def receive(self, wait: bool = False) -> list[Message]:
        if wait:
            self.num_waits += 1
            self.send(Report("event", "searcher-0", {"event": "still_here"}))
            self._on_wait(self.num_waits)
        return super().receive(wait)


def test_the_end_of_a_run_has_a_bound(tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Searcher that goes on sending for ever after the last step is not waited for, but for what it had to say."""
    trainer = trainer_in(tmp_path / "run", folder, num_steps=1)
    now = 0.0
    monkeypatch.setattr("tba.learn.trainer.time", SimpleNamespace(monotonic=lambda: now))

    def pass_seconds(waits: int) -> None:
        nonlocal now
        now += 10.0

    trainer.step, trainer.end_seconds = 1, 60.0
    trainer.groups = groups = NeverHungUp(pass_seconds)
    trainer.conclude()
    trainer.finish()
    assert groups.num_waits == 6
    assert len([r for r in read_metrics(tmp_path / "run") if r.get("event") == "still_here"]) == 6
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_stop_ends_the_wait_for_the_last_evaluation(tmp_path: Path, folder: str) -> None:
    trainer = trainer_in(tmp_path / "run", folder, num_steps=1)

    def ctrl_c(waits: int) -> None:
        trainer.stop_requested = waits == 3

    trainer.step = 1
    trainer.groups = groups = NeverHungUp(ctrl_c)
    trainer.conclude()
    trainer.finish()
    assert groups.num_waits == 3
    assert trainer.finished
    assert (tmp_path / "run" / "summary.json").exists()


def test_groups_that_come_after_the_last_step_are_in_the_log(tmp_path: Path, folder: str) -> None:
    trainer = trainer_in(tmp_path / "run", folder, num_steps=1)
    trainer.step = 1
    trainer.conclude()
    assert isinstance(trainer.groups, InlineGroups)
    for group in random_groups(3, version=1):
        trainer.groups.send(group)
    trainer.finish()
    assert sum(len(groups) for groups in RolloutLog(tmp_path / "run" / "rollouts").read()) == 3
