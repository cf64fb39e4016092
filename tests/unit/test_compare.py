from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.runs.compare import show_comparison
from tba.runs.front import Point, pareto_front, points_of
from tba.runs.summary import headline_of_run, summarise
from tba.tasks import tldr
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
