"""The studies of stale data: their sweeps can be run, and their page says what their records say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.studies import ROOT
from benchmarks.studies.__main__ import COMMANDS, PAGE, STUDIES, curves, grid_over, largest_drop, page, sections
from tba.sweep.settings import read_sweep


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in COMMANDS])
def test_a_study_is_a_sweep_that_can_be_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # as its command is given
    sweep = read_sweep(Path("benchmarks/studies") / f"{name}.toml")
    assert len(sweep.arms) >= 1


def test_the_page_is_made_of_the_records() -> None:
    assert PAGE.read_text("utf-8") == page()


def test_a_table_has_the_mean_of_each_arm_and_its_worst_drop() -> None:
    found = {0: [0.5, 0.9, 0.7], 1: [0.5, 0.7, 0.9]}
    records = [
        {
            "settings": {"a.b": 1},
            "seed": seed,
            "value": values[-1],
            "curve": [(8 * i, 0.0, value) for i, value in enumerate(values)],
        }
        for seed, values in found.items()
    ]
    lines = curves(records).splitlines()
    assert lines[0] == "| arm | step 0 | step 8 | step 16 | last, each seed | largest drop |"
    assert lines[2] == "| `a.b=1` | 0.500 | 0.800 | 0.800 | 0.700, 0.900 | 0.200 |"
    assert lines[-1] == "Seeds 0, 1."


def test_a_grid_has_a_column_for_each_value_and_marks_the_best_of_a_row() -> None:
    values = {("x", 1e-4, 0): 0.5, ("x", 1e-4, 1): 0.7, ("x", 2e-4, 0): 0.4, ("y", 2e-4, 0): 0.9, ("y", 2e-4, 1): 0.8}
    records = [
        {"settings": {"trainer.learning_rate": rate, "arm": arm}, "seed": seed, "value": value}
        for (arm, rate, seed), value in values.items()
    ]
    lines = grid_over("trainer.learning_rate")(records).splitlines()
    assert lines[0] == "| arm | trainer.learning_rate 0.0001 | trainer.learning_rate 0.0002 |"
    assert lines[2:4] == ["| `arm=x` | **0.600** | 0.400 (1) |", "| `arm=y` |  | **0.850** |"]


def test_a_drop_is_measured_from_the_best_so_far() -> None:
    assert largest_drop([0.5, 0.9, 0.8, 0.85, 0.7]) == pytest.approx(0.2)
    assert largest_drop([0.1, 0.2]) == 0


def test_notes_are_told_apart_by_their_headings() -> None:
    found = sections("# Title\n\nHead.\n\n## One\n\nText.\n\n## Not measured yet\n\n- x\n")
    assert found[""] == "# Title\n\nHead.\n"
    assert found["one"] == "Text.\n"
    assert found["not measured yet"].startswith("## Not measured yet\n")
