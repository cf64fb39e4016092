"""`tba runs`: a row for each run, the newest first, and a line for what is none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from run_folders import make_run

from tba.cli import main
from tba.runs.folder import LOCK, locked
from tba.runs.listing import bytes_text, short_model, show_runs
from tba.runs.metrics import Metrics
from tba.runs.newest import newest_run
from tba.runs.overview import rows_below, size_on_disk
from tba.types import TbaError


def started_at(run: Path, seconds: float) -> Path:
    (run / LOCK).touch()
    os.utime(run / LOCK, (seconds, seconds))
    return run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, a sweep's folder, and three folders that are no runs. The terminal is wide."""
    monkeypatch.setenv("COLUMNS", "200")
    root = tmp_path / "runs"
    started_at(make_run(root / "old", accuracies=(0.5, 0.75)), 1_000)
    started_at(make_run(root / "new", steps=2, accuracies=(0.25,), model={"path": "org/small-model"}), 3_000)
    started_at(make_run(root / "dead", steps=3, ended=False), 2_000)
    started_at(make_run(root / "tune" / "arm-seed0"), 2_500)
    started_at(make_run(root / "tune" / "arm-seed1", steps=1), 1_500)
    (root / "tune" / "configs").mkdir()
    (root / "broken").mkdir()
    (root / "broken" / "config.toml").write_text("x = [")
    (root / "foreign").mkdir()
    (root / "foreign" / "config.toml").write_text('model = "y"\n')
    (root / "pictures").mkdir()
    (root / "data").mkdir()
    (root / "notes.txt").write_text("")
    return root


def test_the_newest_comes_first_and_what_is_no_run_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_runs(root)
    head, new, tune, dead, old, *rest = capsys.readouterr().out.splitlines()
    columns = ["run", "task,", "model", "state", "step", "held-out", "accuracy", "started", "took", "size"]
    assert head.split() == columns
    assert new.split()[:6] == ["new", "arithmetic,", "small-model", "stopped", "2/4", "0.250"]
    assert tune.split()[:5] == ["tune/", "1", "finished,", "1", "stopped"]
    assert dead.split()[:4] == ["dead", "arithmetic", "crashed", "3/4"]
    assert old.split()[:7] == ["old", "arithmetic", "finished", "4/4", "0.500", "→", "0.750"]
    assert rest[0] == f"tune is a folder of 2 runs: tba runs {root}/tune"
    assert [line.split(" is not listed: ")[0] for line in rest[1:]] == ["broken", "foreign", "pictures"]
    assert "damaged" in rest[1]
    assert "trainer.num_steps is missing" in rest[2]


def test_a_number_is_named_where_runs_are_judged_by_several(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(root / "own", task={"data": "rows.jsonl"}, reward={"functions": ["m:f"]}, model={"path": "org/m"})
    metrics = Metrics(root / "own")
    metrics.write("eval", 4, {"reward": 1.5, "version": 4})
    metrics.close()
    show_runs(root)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " held-out  " in lines["run"]
    assert "reward 1.500" in lines["own"]
    assert "accuracy 0.500 → 0.750" in lines["old"]


def test_the_runs_of_a_sweep_are_listed_by_its_folder(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_runs(root / "tune")
    shown = capsys.readouterr().out
    assert shown.index("arm-seed0") < shown.index("arm-seed1")
    assert "not listed" not in shown


def test_json_has_the_same_rows(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(root), "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [(Path(row["path"]).name, row["kind"]) for row in rows] == [
        *(("new", "run"), ("tune", "folder"), ("dead", "run"), ("old", "run")),
        *(("broken", "unreadable"), ("foreign", "unreadable"), ("pictures", "unreadable")),
    ]
    old = rows[3]
    assert (old["state"], old["step"], old["num_steps"]) == ("finished", 4, 4)
    assert (old["judged_by"], old["first"], old["last"]) == ("accuracy", 0.5, 0.75)
    assert old["started"] == "1970-01-01T00:16:40Z"
    assert old["num_bytes"] > 0
    assert rows[1]["states"] == {"finished": 1, "stopped": 1}


def test_a_finished_run_is_read_by_its_summary_and_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of runs take no time: their metrics may be long."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the evaluations are in the summary")

    [before] = [row for row in rows_below(root) if row.path.name == "old"]
    monkeypatch.setattr("tba.runs.overview.read_evaluations", refuse)
    monkeypatch.setattr("tba.runs.callbacks.read_metrics", refuse)
    for name in ("new", "dead", "tune"):
        (root / name).rename(root.parent / name)
    [after] = [row for row in rows_below(root) if row.path.name == "old"]
    assert after == before


def test_a_run_that_goes_on_is_read_as_far_as_it_is(root: Path) -> None:
    run = make_run(root / "going", steps=3, accuracies=(0.1, 0.2), ended=False)
    with locked(run):
        row: Any = rows_below(root)[0]
    assert (row.path, row.standing.state, row.first, row.last) == (run, "running", 0.1, 0.2)


def test_names_cannot_move_the_cursor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    make_run(tmp_path / "a\x1b]0;title\x07[bold]b", model={"path": "org/\x1b[2Jmodel"})
    (tmp_path / "c\x1b[31m").mkdir()
    show_runs(tmp_path)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]b" in shown


def test_a_folder_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    show_runs(tmp_path)
    assert "no runs in" in capsys.readouterr().out


def test_the_newest_run_is_the_one_that_was_last_started(root: Path) -> None:
    assert newest_run(root) == root / "new"
    started_at(root / "tune" / "arm-seed1", 4_000)
    assert newest_run(root) == root / "tune" / "arm-seed1"
    started_at(root / "old", 5_000)
    assert newest_run(root) == root / "old", "it was resumed"


def test_the_newest_run_is_one_that_can_be_read(root: Path) -> None:
    os.utime(root / "broken" / "config.toml", (9_000, 9_000))
    started_at(root / "foreign", 9_500)
    assert newest_run(root) == root / "new"
    with pytest.raises(TbaError, match="there is no run in"):
        newest_run(root / "pictures")
    with pytest.raises(TbaError, match="there is no run in"):
        newest_run(root / "nowhere")


def test_the_size_is_that_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "run" / "inner").mkdir(parents=True)
    (tmp_path / "run" / "inner" / "a").write_bytes(b"x" * 100_000)
    (tmp_path / "large").write_bytes(b"x" * 500_000)
    (tmp_path / "run" / "link").symlink_to(tmp_path / "large")
    assert 100_000 <= size_on_disk(tmp_path / "run") < 200_000


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0.0 kB"), (999, "1.0 kB"), (9_960, "10 kB"), (999_499, "999 kB"), (999_500, "1.0 MB"), (12.3e9, "12 GB")],
)
def test_sizes_are_short(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_a_model_is_called_by_the_end_of_its_path() -> None:
    assert short_model("Qwen/Qwen3-0.6B") == "Qwen3-0.6B"
    assert short_model("models/gsm8k-sft/") == "gsm8k-sft"
    assert short_model("runs/demo/checkpoints/step-000120/model") == "demo/step-000120"
