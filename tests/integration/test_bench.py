"""`tba bench` as a command. What it measures is not tested: speed belongs to the benchmarks themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_runs import tba

from tba.benchmarks.report import at_least, at_most, ratio_of
from tba.benchmarks.suite import PARTS, _keep, write_page
from tba.types import TbaError


def test_profile_writes_chrome_traces(tmp_path: Path) -> None:
    done = tba("bench", "profile", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for name in ("training", "generation"):
        names = {event.get("name") for event in json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]}
        assert "aten::mm" in names
        assert str(name) in done.stdout


def test_mistakes_are_told_in_one_line() -> None:
    for arguments, expected in (
        (("nothing",), "no benchmark 'nothing'"),
        (("--fast",), "does not know '--fast'"),
        (("page", "--page", "p.md", "--results", "nowhere"), "no results under nowhere"),
    ):
        done = tba("bench", *arguments)
        assert done.returncode == 2
        assert expected in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_page_is_made_of_what_was_kept(tmp_path: Path) -> None:
    rows = [
        at_least(3.0, "speed", "9 tok/s", "another, 3 tok/s", 3.0, "one run", "the core"),
        at_most(0.5, "memory", "2 MB", "another, 3 MB", 0.67),
    ]
    _keep(tmp_path / "training.json", "training", rows, True, 90.0)
    write_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text("utf-8")
    assert "## Training step" in page
    assert "`tba bench training --full`, 1.5 min" in page
    assert "at least 3 ✓" in page
    assert "at most 0.5 ✗" in page
    assert all(f"## {title}" not in page for name, title in PARTS.items() if name != "training")
    with pytest.raises(TbaError, match="run tba bench first"):
        write_page(tmp_path / "empty", tmp_path / "page.md")


def test_the_ratio_is_the_median_of_pairs() -> None:
    assert ratio_of([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == (3.0, "2.00 to 4.00 (n=3)")
