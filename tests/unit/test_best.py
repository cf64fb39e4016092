"""The best model of a run: which one is kept, and that there always is a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.learn.checkpoint import run_of_model
from tba.runs.best import KeptBest, best_model, read_best
from tba.types import Version


def kept(run: Path, save: Any = None) -> KeptBest:
    return KeptBest(run, lambda values: "accuracy", save or write_model)


def write_model(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")


@given(st.lists(st.sampled_from([None, float("nan"), 0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=8))
@settings(max_examples=50, deadline=None)
def test_the_first_of_the_highest_is_kept(tmp_path_factory: pytest.TempPathFactory, values: list[float | None]) -> None:
    run = tmp_path_factory.mktemp("run")
    for i, value in enumerate(values):
        kept(run).offer(Version(0, 10 * i), {"accuracy": value})  # a new one each time, as after a restart
    numbers = [(v, -i) for i, v in enumerate(values) if v is not None and v == v]
    best = read_best(run)
    if not numbers:
        assert best is None
        return
    value, place = max(numbers)
    assert best is not None
    assert (best.value, best.step, best.metric) == (value, -10 * place, "accuracy")
    folder = best_model(run)
    assert folder == (run / f"best/step-{best.step:06d}/model" if best.step else None)
    assert {path.name for path in (run / "best").iterdir()} == {best.name}, "and no other"


def test_the_starting_model_is_not_copied(tmp_path: Path) -> None:
    kept(tmp_path).offer(Version(0, 0), {"accuracy": 0.5})
    best = read_best(tmp_path)
    assert best is not None
    assert best.is_starting_model
    assert not list((tmp_path / "best").rglob("config.json"))
    assert best_model(tmp_path) is None


def test_a_full_disk_is_told_and_leaves_the_one_before(tmp_path: Path) -> None:
    kept(tmp_path).offer(Version(0, 4), {"accuracy": 0.5})

    def fails(folder: Path) -> None:
        write_model(folder)
        raise OSError(28, "No space left on device")

    assert kept(tmp_path, fails).offer(Version(0, 8), {"accuracy": 0.6}) == {
        "best_not_saved": "No space left on device"
    }
    best = read_best(tmp_path)
    assert best is not None
    assert best.step == 4
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step-000004"]


def test_another_metric_is_not_compared(tmp_path: Path) -> None:
    """Where the task's own number could not be measured, an evaluation is judged by its reward."""
    kept(tmp_path).offer(Version(0, 4), {"accuracy": 0.5})
    KeptBest(tmp_path, lambda values: "reward", write_model).offer(Version(0, 8), {"reward": 0.1})
    best = read_best(tmp_path)
    assert best is not None
    assert (best.metric, best.step) == ("reward", 8)


def test_the_run_of_the_best_model_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.toml").touch()
    kept(tmp_path).offer(Version(0, 4), {"accuracy": 0.5})
    folder = best_model(tmp_path)
    assert folder is not None
    assert run_of_model(folder) == tmp_path.resolve()
