"""Runs that tba 0.1.0 recorded are resumed, replayed and read: tests/data/run-0.1.0."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from small_runs import assert_nothing_doubled, records, rollouts, tba, train_records

from tba.api import resume
from tba.buffer.draws import read_draws
from tba.buffer.log import RolloutLog
from tba.buffer.recorded import recorded_groups
from tba.launch.replay import largest_difference, replay_run
from tba.learn.checkpoint import list_checkpoints
from tba.learn.epochs import Epochs
from tba.runs.compare import show_comparison
from tba.runs.metrics import read_metrics
from tba.runs.status import show_status
from tba.types import Version

DATA = Path(__file__).parents[1] / "data" / "run-0.1.0"
NOBODY = 2**22 + 1
"""A process id that the system never gives."""
ROUNDING, GROWN = 1e-6, 1e-4
"""Relative differences of a loss: another processor adds up in another order, and the steps let the difference grow."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy in which the settings name the copy, and the processes are gone."""
    folder = tmp_path / "run-0.1.0"
    shutil.copytree(DATA, folder)
    for config in folder.glob("*/config.toml"):
        config.write_text(config.read_text("utf-8").replace("RECORDED", str(folder)), "utf-8")
    for path in folder.glob("*/processes/*.json"):
        path.write_text(json.dumps(json.loads(path.read_bytes()) | {"pid": NOBODY}), "utf-8")
    return folder


@pytest.mark.parametrize("name", ["inline", "local"])
def test_its_log_is_of_epoch_0_and_written_by_the_policy(folder: Path, name: str) -> None:
    groups = [group for merge in RolloutLog(folder / name / "rollouts").read() for group in merge]
    trajectories = [t for group in groups for t in group.trajectories]
    frame = rollouts(folder / name)
    assert [t.version for t in trajectories] == [Version(0, step) for step in frame["version"]]
    assert all(t.response.written.all() and t.response.num_written == len(t.response) for t in trajectories)
    steps = list(recorded_groups(folder / name / "rollouts", read_draws(folder / name)))
    assert len(steps) == len(train_records(folder / name))


@pytest.mark.parametrize("name", ["inline", "local"])
def test_it_is_replayed(folder: Path, name: str) -> None:
    run = folder / name
    again, finished = replay_run(run, {"run": {"name": "again"}})
    assert finished
    recorded, replayed = train_records(run), records(again, "train")
    if name == "local":  # killed as it wrote: the record of its last draw may be missing
        replayed = replayed[: len(recorded)]
    assert [r["step"] for r in replayed] == [r["step"] for r in recorded]
    for num_steps, tolerance in ((1, ROUNDING), (len(recorded), GROWN)):
        difference = largest_difference(recorded[:num_steps], replayed[:num_steps])
        assert difference is not None
        assert difference <= tolerance
    assert [r["staleness/counts"] for r in replayed] == [r["staleness/counts"] for r in recorded]


@pytest.mark.parametrize(("checkpoint", "evaluated"), [(4, [0, 4, 4, 8, 10]), (6, [0, 4, 6, 8, 10])])
def test_an_inline_run_goes_on_in_its_epoch(folder: Path, checkpoint: int, evaluated: list[int]) -> None:
    run = folder / "inline"
    steps = {"trainer": {"num_steps": 10}}
    assert resume(run / "checkpoints" / f"step-{checkpoint:06d}", steps).run == run
    assert [r["step"] for r in train_records(run)] == list(range(1, 11))
    assert [c.step for c in list_checkpoints(run)] == [4, 6, 8, 10]
    # What its Searcher had evaluated before the round of the checkpoint is known: step 0, or step 4.
    assert [r["step"] for r in read_metrics(run) if r["kind"] == "eval"] == evaluated
    assert list_checkpoints(run)[-1].state()["epoch"] == 0
    assert not (run / "epochs.json").exists()
    assert all("epoch" not in r for r in records(run))
    assert_nothing_doubled(rollouts(run), num_responses=3)
    versions = {t.version for merge in RolloutLog(run / "rollouts").read() for g in merge for t in g.trajectories}
    assert versions == {Version(0, step) for step in (0, 2, 4, 6, 8)}


def test_a_killed_run_goes_on_in_a_new_epoch(folder: Path) -> None:
    """Its log holds groups of weights after its checkpoint, that of step 8."""
    run = folder / "local"
    assert rollouts(run)["version"].max() > 8, "else this tests nothing"
    resumed = tba("train", "--resume", str(run), "--trainer.num-steps", "16")
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    made = train_records(run)
    assert [r["step"] for r in made] == list(range(1, 17))
    assert all(int(age) >= 0 for r in made for age in r["staleness/counts"])
    epochs = Epochs.read(run)
    assert epochs.newest == 1
    assert epochs.age(Version(0, 10), Version(1, 9)) == (10 - 8) + (9 - 8)
    drawn = recorded_groups(run / "rollouts", read_draws(run))
    for record, groups in list(zip(made, drawn, strict=True))[8:]:
        ages = [epochs.age(t.version, Version(1, record["step"] - 1)) for group in groups for t in group.trajectories]
        assert record["staleness/counts"] == {str(age): ages.count(age) for age in set(ages)}
    assert_nothing_doubled(rollouts(run), num_responses=3)


def test_status_and_comparison_read_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show_status(folder / "inline") == 0
    assert "finished, step 6 of 6" in capsys.readouterr().out
    assert show_status(folder / "local") == 1
    assert "crashed, step" in capsys.readouterr().out
    show_comparison([folder / "inline", folder / "local"])
    shown = capsys.readouterr().out
    assert "inline" in shown
    assert "local" in shown
