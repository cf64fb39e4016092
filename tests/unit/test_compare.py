from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from run_folders import make_run, write_event, write_records

from tba.cli import main
from tba.runs.compare import show_comparison
from tba.runs.curves import AXES, curves_of
from tba.runs.end_table import end_table
from tba.runs.folder import locked
from tba.runs.front import Point, pareto_front, points_of
from tba.runs.summary import headline_of_run, summarise
from tba.runs.summary_rows import summary_rows
from tba.tasks import TaskSettings, tldr
from tba.types import TbaError

VALUES = st.integers(0, 5).map(float)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_the_front_is_what_nothing_beats(pairs: list[tuple[float, float]]) -> None:
    points = [Point("r", i, kl, win, None, None, None) for i, (kl, win) in enumerate(pairs)]

    def beaten(p: Point) -> bool:
        return any(
            q.kl <= p.kl and q.win_rate >= p.win_rate and (q.kl, q.win_rate) != (p.kl, p.win_rate) for q in points
        )

    front = pareto_front(points)
    assert {(p.kl, p.win_rate) for p in front} == {(p.kl, p.win_rate) for p in points if not beaten(p)}
    assert [p.kl for p in front] == sorted({p.kl for p in front})


def evaluation(step: int, **values: Any) -> dict[str, Any]:
    lengths = {"completions/mean_length": 30.0, "reference/mean_length": 25.0}
    return {"kind": "eval", "step": step, "time": float(step), "source": "searcher-0", **lengths, **values}


def report(step: int, **values: Any) -> dict[str, Any]:
    counts = {"tokens": 10, "failed": 0, "groups_dropped": 0, "kl": None}
    return {"kind": "search", "step": step, "time": float(step), "source": "searcher-0", **counts, **values}


def write_run(run: Path, evals: list[dict[str, Any]], task: str = "arithmetic") -> Path:
    run.mkdir(parents=True)
    (run / "config.toml").write_text(f'[task]\nkind = "{task}"\n')
    (run / "metrics.jsonl").write_text("".join(json.dumps(e) + "\n" for e in evals))
    (run / "summary.json").write_text(json.dumps(summarise(evals, headline_of_run(run))))
    return run


def preference_run(run: Path) -> Path:
    evals = [evaluation(s, win_rate=0.4 + s / 100, win_rate_se=0.05, kl=s / 10) for s in (0, 10, 20)]
    return write_run(run, evals, "tldr")


def test_points_need_a_win_rate_and_a_kl() -> None:
    evals = [evaluation(0, win_rate=0.5, kl=0.0), evaluation(1, win_rate=None, kl=1.0), evaluation(2, win_rate=0.6)]
    assert [(p.step, p.win_rate, p.kl, p.length) for p in points_of("r", evals)] == [(0, 0.5, 0.0, 30.0)]


def test_the_table_shows_every_evaluation_with_its_lengths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison([preference_run(tmp_path / "one"), preference_run(tmp_path / "two")])
    shown = capsys.readouterr().out
    assert shown.count("0.400 → 0.600 ± 0.050") == 2
    assert shown.count(" 0.600 ± 0.050") == 4
    assert "Pareto front" in shown
    assert "accuracy" not in shown
    assert "reference length" in shown


@pytest.mark.parametrize("kind", ["preference", "accuracy", "reward only"])
def test_compare_draws_a_picture(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    if kind == "preference":
        run = preference_run(tmp_path / "run")
    elif kind == "reward only":
        run = write_run(tmp_path / "run", [report(s, reward=s / 20) for s in (0, 10, 20)])
    else:
        run = write_run(tmp_path / "run", [evaluation(s, accuracy=s / 20, accuracy_se=0.1) for s in (0, 10, 20)])
    picture = tmp_path / "front.png"
    show_comparison([run], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TbaError, match="cannot draw to"):
        show_comparison([run], tmp_path / "front.nonsense")


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = preference_run(tmp_path / "run")
    (run / "summary.json").unlink()
    show_comparison([run])
    assert "0.600 ± 0.050" in capsys.readouterr().out
    with pytest.raises(TbaError, match="not a run"):
        show_comparison([tmp_path / "nothing"])


def test_runs_without_anything_to_draw_are_told_so(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match="nothing to draw yet"):
        show_comparison([write_run(tmp_path / "run", [])], tmp_path / "front.png")


def test_a_picture_names_the_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(TbaError, match=r"trajectory-balance\[plots\]"):
        show_comparison([preference_run(tmp_path / "run")], tmp_path / "front.png")


def test_a_summary_tells_a_win_rate_with_its_length_and_kl() -> None:
    evals = [evaluation(0, win_rate=0.3, kl=0.0), evaluation(5, win_rate=0.6, win_rate_se=0.1, kl=2.0)]
    summary = summarise(evals, tldr.Settings.headline)
    assert (summary["win_rate_first"], summary["win_rate_last"], summary["win_rate_best"]) == (0.3, 0.6, 0.6)
    assert (summary["length_last"], summary["reference_length_last"], summary["eval_kl_last"]) == (30.0, 25.0, 2.0)
    assert "accuracy_last" not in summary


# ---------------------------------------------------------------------------------------------------------------------
# Settings, words, axes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """One has ended; the other goes on, was resumed once, and has an older summary. The terminal is wide."""
    monkeypatch.setenv("COLUMNS", "400")
    one = make_run(tmp_path / "one", accuracies=(0.25, 0.75))
    two = make_run(tmp_path / "two", steps=2, num_steps=8, accuracies=(0.5, 0.625), objective={"beta": 0.25})
    write_event(two, 2, "resumed")
    write_records(two, range(3, 6))
    return [one, two]


def test_only_settings_that_differ_are_shown(two: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(two)
    settings = capsys.readouterr().out.partition("results")[0]
    assert re.findall(r"│ (\S+\.\S+) +│ +(\S+) +│ +(\S+)", settings) == [
        ("objective.beta", "0.05", "0.25"),
        ("trainer.num_steps", "4", "8"),
    ]
    show_comparison([two[0], two[0]])
    assert "All settings of these runs are the same." in capsys.readouterr().out


def test_a_run_that_goes_on_is_compared_as_it_is_now(two: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    with locked(two[1]):
        show_comparison(two, as_json=True)
    found = json.loads(capsys.readouterr().out)["runs"]
    assert (found["one"]["state"], found["two"]["state"]) == ("finished", "running")
    assert (found["two"]["step"], found["two"]["num_steps"]) == (5, 8)
    assert found["two"]["summary"]["steps"] == 5
    assert found["one"]["summary"]["accuracy_last"] == 0.75


def test_json_has_the_settings_too(two: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *map(str, two), "--json"]) == 0
    differ = json.loads(capsys.readouterr().out)["settings_that_differ"]
    assert differ == {"objective.beta": {"one": 0.05, "two": 0.25}, "trainer.num_steps": {"one": 4, "two": 8}}


def test_words_are_those_of_a_runs_own_summary(two: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    summary = json.loads((two[0] / "summary.json").read_text())
    console.print(end_table(summary, TaskSettings.headline))
    at_end = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", console.export_text()))
    show_comparison(two[:1])
    compared = dict(re.findall(r"│ (\S.*?) +│ (.*?) +│", capsys.readouterr().out))
    shared = at_end.keys() & compared.keys()
    assert {"held-out accuracy", "reward of new responses", "steps", "tokens/s", "staleness in steps"} <= shared
    assert {label: at_end[label] for label in shared} == {label: compared[label] for label in shared}


def test_the_raw_name_stands_beside_its_words_where_there_is_room(
    two: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show_comparison(two)
    assert re.search(r"held-out accuracy .* accuracy_first, …_last, …_last_se", capsys.readouterr().out)
    monkeypatch.setenv("COLUMNS", "80")
    show_comparison(two)
    narrow = capsys.readouterr().out
    assert "accuracy_first" not in narrow
    assert "--json" in narrow


def test_every_key_of_a_summary_has_words_or_is_of_one_process(two: list[Path]) -> None:
    summary = json.loads((two[0] / "summary.json").read_text())
    told = {key for row in summary_rows(TaskSettings.headline) for key in row.keys}
    untold = {key for key in summary if key not in told and "/" not in key}
    assert untold == {
        *("judged_by", "trainer_wall_seconds", "searchers_wall_seconds"),
        *("responses_num_draws", "responses_most_draws"),
    }


def test_without_matplotlib_nothing_is_printed_before_it_is_said(
    two: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["compare", *map(str, two), "--plot", "p.png"]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "[plots]" in told.err


RECORDS = [
    {"kind": "train", "step": 2, "time": 60.0, "num_tokens": 50},
    {"kind": "search", "step": 3, "time": 90.0, "reward": 0.5},
    {"kind": "train", "step": 4, "time": 120.0, "num_tokens": 90},
    {"kind": "eval", "step": 4, "time": 180.0, "accuracy": 0.75, "accuracy_se": 0.1},
    {"kind": "eval", "step": 0, "time": 30.0, "accuracy": 0.25},
]


@pytest.mark.parametrize(
    ("axis", "evaluated", "searched"),
    [("minutes", [0.5, 3.0], [1.5]), ("steps", [0.0, 4.0], [3.0]), ("tokens", [0.0, 90.0], [50.0])],
)
def test_curves_are_over_minutes_steps_or_tokens(axis: str, evaluated: list[float], searched: list[float]) -> None:
    curves = curves_of(RECORDS, TaskSettings.headline, axis)
    assert [x for x, _, _ in curves.evaluated] == evaluated
    assert [x for x, _ in curves.searched] == searched
    assert curves.evaluated[-1][1:] == (0.75, 0.1)


@pytest.mark.parametrize("axis", AXES)
def test_a_plot_names_its_axis(two: list[Path], axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []
    monkeypatch.setattr("tba.runs.plots._save", lambda figure, panels, path: drawn.extend(panels))
    show_comparison(two, Path("p.png"), axis=axis)
    assert {panel.get_xlabel() for panel in drawn} == {AXES[axis]}
    assert [panel.get_ylabel() for panel in drawn] == ["held-out accuracy", "reward of new responses"]


def test_names_that_a_picture_would_misread_are_drawn_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [make_run(tmp_path / name, accuracies=(0.1, 0.2)) for name in ("a$b_{$", "_hidden")]
    show_comparison(runs, tmp_path / "p.png")
    assert (tmp_path / "p.png").stat().st_size > 1_000
