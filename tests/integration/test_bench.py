"""`python -m benchmarks` as a command. What it measures is not tested: speed belongs to the benchmarks themselves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_runs import run_module

from benchmarks.arrival import NEVER, Arrival
from benchmarks.race import EASY, _row
from benchmarks.report import Row, at_least, at_most, ratio_of
from benchmarks.suite import NOTES, PARTS, _keep, command, run_parts, write_page
from tba.types import TbaError

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "docs" / "benchmarks"


def test_profile_writes_chrome_traces(tmp_path: Path) -> None:
    done = run_module("benchmarks", "profile", "--output", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for name in ("training", "generation"):
        names = {event.get("name") for event in json.loads((tmp_path / f"{name}.json").read_text())["traceEvents"]}
        assert "aten::mm" in names
        assert str(name) in done.stdout


def test_mistakes_are_told_in_one_line() -> None:
    for arguments, expected in (
        (("nothing",), "no benchmark 'nothing'"),
        (("--fast",), "unrecognized arguments: --fast"),
        (("page", "--page", "p.md", "--results", "nowhere"), "no results under nowhere"),
    ):
        done = run_module("benchmarks", *arguments, cwd=ROOT)
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
    assert "`python -m benchmarks training --full`, 1.5 min" in page
    assert "at least 3 ✓" in page
    assert "at most 0.5 ✗" in page
    assert all(f"## {title}" not in page for name, title in PARTS.items() if name != "training")
    with pytest.raises(TbaError, match="run python -m benchmarks first"):
        write_page(tmp_path / "empty", tmp_path / "page.md")


def test_the_ratio_is_the_median_of_pairs() -> None:
    assert ratio_of([2.0, 9.0, 4.0], [1.0, 3.0, 1.0]) == (3.0, "2.00 to 4.00 (n=3)")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A benchmark that measures nothing stands in for `draws`; here is for which form it was asked."""
    asked: list[bool] = []

    def run(full: bool) -> list[Row]:
        asked.append(full)
        return [at_least(1.0, "speed", "2 tok/s", "1 tok/s", 2.0 if full else 1.5, "one run")]

    monkeypatch.setattr("benchmarks.suite.importlib", SimpleNamespace(import_module=lambda _: SimpleNamespace(run=run)))
    return asked


def test_quick_results_do_not_replace_full_ones(tmp_path: Path, measured: list[bool]) -> None:
    run_parts(["draws"], full=False, results=tmp_path)
    run_parts(["draws"], full=True, results=tmp_path)
    kept = (tmp_path / "draws.json").read_text("utf-8")
    assert json.loads(kept)["full"] is True
    with pytest.raises(TbaError, match=r"draws\.json holds results of --full") as told:
        run_parts(["scoring", "draws"], full=False, results=tmp_path)
    assert "\n" not in str(told.value)
    assert measured == [False, True], "it is refused before anything is measured"
    assert (tmp_path / "draws.json").read_text("utf-8") == kept
    run_parts(["draws"], full=True, results=tmp_path)


def test_a_file_that_holds_no_results_is_not_replaced(tmp_path: Path, measured: list[bool]) -> None:
    (tmp_path / "draws.json").write_text('{"rows": ')
    with pytest.raises(TbaError, match="not a file of results"):
        run_parts(["draws"], full=False, results=tmp_path)
    assert measured == []


def test_quick_and_full_results_of_make_go_to_different_places() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    commands = [line for line in makefile.splitlines() if "-m benchmarks" in line]
    assert [("--full" in line, "docs/" in line) for line in commands] == [(False, False), (True, True)]


def test_notes_stand_apart_from_the_rows(tmp_path: Path) -> None:
    _keep(tmp_path / "draws.json", "draws", [at_most(2.0, "draw", "1 µs", "", 1.0)], False, 1.0)
    (tmp_path / NOTES).write_text(
        "# Notes\n\nOf the file.\n\n## draws\n\nSeen once.\n\n## scoring\n\nNot measured here.\n"
    )
    write_page(tmp_path, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text("utf-8")
    table, _, commentary = page.partition("**Commentary, written by hand:**")
    assert "| draw |" in table
    assert "Seen once." not in table
    assert "Seen once." in commentary
    assert "Not measured here." not in page
    assert "Of the file." not in page
    (tmp_path / NOTES).write_text("## drawing\n\nSeen once.\n")
    with pytest.raises(TbaError, match="section 'drawing'"):
        write_page(tmp_path, tmp_path / "page.md")


def test_a_race_says_itself_who_did_not_arrive() -> None:
    row = _row(EASY, "another", [Arrival(2.0), NEVER], [Arrival(9.0), Arrival(30.0, reached=False)])
    assert row.measured == "seconds by seed: 2.0, not reached against 9.0, >30.0"
    assert math.isclose(row.ratio, (9.0 / 2.0 + 0.0) / 2)


def test_the_published_page_is_made_of_the_published_results(tmp_path: Path) -> None:
    write_page(PUBLISHED, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text("utf-8") == (ROOT / "docs" / "benchmarks.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_published_results_are_as_a_program_writes_them(path: Path) -> None:
    """Full ones, under the command that makes them, in cells that a reader can take in."""
    kept = json.loads(path.read_text("utf-8"))
    # Before benchmarks left the package, the command line ran them.
    assert kept["command"] in (command(path.stem, full=True), f"tba bench {path.stem} --full")
    assert kept["full"] is True
    for row in (Row(**row) for row in kept["rows"]):
        assert all(len(cell) <= 100 for cell in (row.name, row.ours, row.other, row.spread, row.measured))
        if not row.target:
            assert row.met is None
            continue
        assert row.met == (row.ratio >= limit(row) if row.target.startswith("at least") else row.ratio <= limit(row))


def limit(row: Row) -> float:
    return float(row.target.split()[-1])
