"""Names that look like the terminal library's markup are printed as they are."""

from __future__ import annotations

import io
import json
import shlex
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from tba.config.settings import Config
from tba.launch.evaluation_tables import breakdown_table, values_table
from tba.runs.activity import Activity
from tba.runs.compare import show_comparison
from tba.runs.display import Display, told
from tba.runs.end_table import end_lines, end_table
from tba.runs.run_config import write_run_config
from tba.runs.status import show_status
from tba.runs.summary import summarise
from tba.tasks import TaskSettings

NAMES = ["exp[lr=1e-4]", "exp[a]", "exp[bold]b", "x[/]", "[/]", "[/bold]", "a\\[b]", "end\\"]


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of this name, stopped after one step with a checkpoint, as seen from the folder it lies in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    path = Path(request.param)
    (path / "checkpoints" / "step-000001" / "model").mkdir(parents=True)
    evaluation = {"kind": "eval", "step": 1, "time": 1.0, "win_rate": 0.5, "win_rate_se": 0.1, "kl": 0.1}
    lengths = {"completions/mean_length": 3.0, "reference/mean_length": 3.0}
    step = {"kind": "train", "step": 1, "time": 1.0, "reward": 0.5, "num_tokens": 3, "staleness/counts": {"0": 1}}
    records = [step, {**evaluation, **lengths}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "summary.json").write_text(json.dumps(summarise(records)))
    return path


def test_the_end_of_a_run_says_how_to_resume_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Config.embedded(run={"display": "plain"}, model={"path": f"models/{run}"})
    with Display(config, run) as display:
        display.conclude(False)
    shown = capsys.readouterr().out
    assert f"tba · {run} · models/{run} on" in shown
    assert f"tba train --resume {run}\n" in shown


def test_the_lines_at_the_end_show_the_path(run: Path) -> None:
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(end_table(json.loads((run / "summary.json").read_text()), TaskSettings.headline))
    console.print(*end_lines(run, TaskSettings.headline), sep="\n", soft_wrap=True)
    shown = console.export_text()
    assert f"tba eval {shlex.quote(str(run))} " in shown
    assert f"tensorboard --logdir {shlex.quote(str(run))}\n" in shown
    assert shown.count(str(run)) == 5


def test_status_names_the_run_and_what_its_processes_say(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tba.runs.status._is_alive", lambda pid: True)
    write_run_config(run, Config.embedded())
    with Activity(run, "searcher-0")("score", f"[red]{run}[/]"):
        show_status(run)
    shown = capsys.readouterr().out
    assert f"{run}: stopped" in shown
    assert f"tba train --resume {run}\n" in shown
    assert f"[red]{run}[/]" in shown


def test_compare_names_the_runs(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison([run])
    shown = capsys.readouterr().out
    assert shown.count(f" {run.name} ") == 2, "in the head of one table and in a row of the other"


def test_events_are_told_as_they_are(run: Path) -> None:
    record = {"kind": "event", "step": 0, "time": 0.0, "event": "prompts_skipped", "why": f"[/] {run}"}
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(told(record, TaskSettings.headline))
    assert f"prompts skipped: why [/] {run}\n" in console.export_text()


def test_an_evaluation_names_its_parts(run: Path) -> None:
    values = {"accuracy": 0.5, f"accuracy/level={run}": 0.5, f"accuracy/level={run}_n": 2}
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(values_table(f"{run}/checkpoints/step-000001/model on x", values), breakdown_table(values))
    shown = "".join(console.export_text().split())  # titles are as narrow as their tables
    assert f"{run}/checkpoints/step-000001/modelonx" in shown
    assert f"level={run}│" in shown


def test_a_long_path_is_not_broken_at_the_edge_of_the_screen(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there to be copied, and how long it is differs from machine to machine."""
    monkeypatch.setenv("COLUMNS", "80")
    long = tmp_path / ("a-name-" * 20)
    shutil.copytree(run, long)
    config = Config.embedded(run={"display": "plain"})
    write_run_config(long, config)
    with Activity(long, "searcher-0")("score", ""):
        show_status(long)
    with Display(config, long) as display:
        display.conclude(False)
    shown = capsys.readouterr().out
    assert f"{long}: stopped, step" in shown
    assert shown.count(f"tba train --resume {long}\n") == 2
    assert f"tba · {long} · " in shown
