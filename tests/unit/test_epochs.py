"""Ages against a brute-force walk on an explicit tree of weights, and what is kept of the tree on disk."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.learn.epochs import EPOCHS, Epochs
from tba.types import TbaError, Version


@dataclass(eq=False)
class Weights:
    """A node of the tree: its neighbours are one optimizer step away."""

    neighbours: list[Weights] = field(default_factory=list)

    def step(self) -> Weights:
        after = Weights([self])
        self.neighbours.append(after)
        return after

    def distances(self) -> dict[Weights, int]:
        found, waiting = {self: 0}, deque([self])
        while waiting:
            weights = waiting.popleft()
            for other in weights.neighbours:
                if other not in found:
                    found[other] = found[weights] + 1
                    waiting.append(other)
        return found


@dataclass
class Tree:
    """All versions that exist, each with its weights, and the epochs they belong to."""

    epochs: Epochs = field(default_factory=Epochs)
    weights: dict[Version, Weights] = field(default_factory=lambda: {Version(0, 0): Weights()})
    newest: Version = field(default_factory=lambda: Version(0, 0))

    def train(self, num_steps: int) -> None:
        for _ in range(num_steps):
            after = self.newest._replace(step=self.newest.step + 1)
            self.weights[after] = self.weights[self.newest].step()
            self.newest = after

    def resume(self, checkpoint: Version) -> None:
        before = {version.epoch for version in self.weights}
        self.newest = self.epochs.branch(checkpoint)
        assert self.newest.epoch not in before
        assert self.newest.step == checkpoint.step
        self.weights[self.newest] = self.weights[checkpoint]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Runs that train, are killed and resumed from any version there is, again and again."""
    tree = Tree()
    tree.train(draw(st.integers(0, 5)))
    for _ in range(draw(st.integers(0, 5))):
        tree.resume(draw(st.sampled_from(sorted(tree.weights))))
        tree.train(draw(st.integers(0, 4)))
    return tree


@given(trees())
def test_age_is_the_distance_on_the_tree_of_weights(tree: Tree) -> None:
    for version, weights in tree.weights.items():
        distances = weights.distances()
        for other, its_weights in tree.weights.items():
            assert tree.epochs.age(version, other) == distances[its_weights]


@given(trees(), st.data())
def test_age_is_a_distance(tree: Tree, data: st.DataObject) -> None:
    a, b, c = (data.draw(st.sampled_from(sorted(tree.weights))) for _ in range(3))
    age = tree.epochs.age
    assert age(a, b) == age(b, a) >= 0
    assert age(a, c) <= age(a, b) + age(b, c)
    assert (age(a, b) == 0) == (tree.weights[a] is tree.weights[b])


@given(trees(), st.integers(0, 8))
def test_the_fresh_steps_of_each_epoch_are_those_within_the_limit(tree: Tree, limit: int) -> None:
    """Of any version, and, while the newest epoch goes on, of the newest above all."""
    ranges = tree.epochs.fresh(tree.newest, limit)
    for version in tree.weights:
        is_fresh = tree.epochs.age(version, tree.newest) <= limit
        assert ranges[version.epoch].includes(version.step) == is_fresh


@given(trees(), st.integers(0, 8), st.integers(0, 4))
def test_what_is_stale_stays_stale(tree: Tree, limit: int, num_steps: int) -> None:
    before = tree.epochs.fresh(tree.newest, limit)
    versions = list(tree.weights)
    tree.train(num_steps)
    after = tree.epochs.fresh(tree.newest, limit)
    for version in versions:
        assert before[version.epoch].includes(version.step) or not after[version.epoch].includes(version.step)


@given(trees())
def test_a_step_before_the_fork_is_that_of_the_parent(tree: Tree) -> None:
    """A replay names every step of a run by the epoch that the run was in at its end."""
    for step in range(tree.newest.step):
        named = tree.newest._replace(step=step)
        assert tree.epochs.age(named, tree.newest) == tree.newest.step - step


def test_data_of_an_abandoned_epoch_are_as_old_as_the_way_round() -> None:
    epochs = Epochs()
    now = epochs.branch(Version(0, 8))
    assert now == Version(1, 8)
    assert epochs.age(Version(0, 10), now) == 2
    assert epochs.age(Version(0, 10), now._replace(step=15)) == (10 - 8) + (15 - 8)
    assert epochs.age(Version(0, 5), now._replace(step=15)) == 15 - 5


@given(trees())
def test_what_is_read_is_what_was_written(tmp_path_factory: pytest.TempPathFactory, tree: Tree) -> None:
    run = tmp_path_factory.mktemp("run")
    tree.epochs.write(run)
    again = Epochs.read(run)
    assert [path.name for path in run.iterdir()] == [EPOCHS]
    assert again.newest == tree.epochs.newest
    assert all(again.age(a, tree.newest) == tree.epochs.age(a, tree.newest) for a in tree.weights)
    assert again.branch(tree.newest) == tree.epochs.branch(tree.newest)


def test_a_run_without_the_file_has_epoch_0_only(tmp_path: Path) -> None:
    epochs = Epochs.read(tmp_path)
    assert epochs.newest == 0
    assert epochs.age(Version(0, 3), Version(0, 9)) == 6


@pytest.mark.parametrize("text", ["", "[]", '{"1": 3}', '{"1": {"epoch": 0}}', '{"x": {"epoch": 0, "step": 1}}'])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / EPOCHS).write_text(text)
    with pytest.raises(TbaError, match=EPOCHS):
        Epochs.read(tmp_path)


def test_an_epoch_that_is_not_in_the_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=r"epoch 2.*restore"):
        Epochs.read(tmp_path).age(Version(2, 5), Version(0, 9))
