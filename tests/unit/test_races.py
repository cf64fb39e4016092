"""The races of both modes: what they are made of, that a run is made once, and what the table says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.arrival import Point
from benchmarks.studies import races
from benchmarks.studies.races import CONTESTS, MODES, SEEDS, main, read, run_once, table
from tba.config.settings import Config
from tba.types import TbaError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CONTESTS)
def test_a_contest_is_between_settings_that_can_be_run(name: str, mode: str) -> None:
    config = Config.embedded(**CONTESTS[name].sections(mode))
    assert config.trainer.synchronous == (mode == "synchronous")


@pytest.mark.parametrize("name", CONTESTS)
def test_both_modes_have_the_same_problem(name: str) -> None:
    one, other = (Config.embedded(**CONTESTS[name].sections(mode)) for mode in MODES)
    for section in ("model", "task", "engine", "reward", "objective", "run"):
        assert getattr(one, section) == getattr(other, section), section
    assert one.searcher.num_responses == other.searcher.num_responses
    assert one.trainer.group_size == other.trainer.group_size


def record(name: str, mode: str, seed: int, seconds: float) -> dict[str, Any]:
    contest = CONTESTS[name]
    return {
        "contest": name,
        "mode": mode,
        "seed": seed,
        "target": contest.target,
        "settings": contest.sections(mode),
        "curve": [[8, seconds / 2, contest.target - 0.1], [16, seconds, contest.target]],
    }


def test_the_table_has_the_median_of_pairs_and_says_if_all_were_run() -> None:
    records = [record("judge", "synchronous", seed, 60.0 + seed) for seed in SEEDS]
    records += [record("judge", "asynchronous", seed, 20.0) for seed in SEEDS]
    [row] = [line for line in table(records).splitlines() if "takes a second" in line]
    assert (
        "| 62.0 (60.0, 61.0, 62.0, 63.0, 64.0) | 20.0 (20.0, 20.0, 20.0, 20.0, 20.0) | **3.10** (3.00 to 3.20 (n=5))"
        in row
    )
    assert row.endswith("at least 2.0 ✓ |")
    [row] = [line for line in table(records[:-1]).splitlines() if "takes a second" in line]
    assert row.endswith("at least 2.0 ✗ |"), "four of five seeds are no result yet"


def test_a_run_that_does_not_arrive_took_for_ever() -> None:
    late = {**record("judge", "asynchronous", 0, 20.0), "curve": [[8, 10.0, 0.1]]}
    [row] = [
        line for line in table([record("judge", "synchronous", 0, 60.0), late]).splitlines() if "takes a sec" in line
    ]
    assert "inf (never)" in row
    assert "**0.00**" in row


def test_runs_of_other_settings_do_not_count() -> None:
    records = [record("judge", mode, 0, 20.0) for mode in MODES]
    records[0]["settings"] = {**records[0]["settings"], "trainer": {"num_steps": 1}}
    assert "takes a second" not in table(records)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs whose points are made up; here are the seeds they were made with."""
    seeds: list[int] = []

    @contextmanager
    def run(sections: Any, seed: int, every: int) -> Iterator[tuple[Any, Iterator[Point]]]:
        seeds.append(seed)
        points = (Point(every * i, float(i), min(1.0, 0.3 * i)) for i in range(1, 9))
        yield SimpleNamespace(summary={"staleness_p50": 3}), points

    monkeypatch.setattr(races, "evaluated_run", run)
    return seeds


def test_a_run_is_made_once_and_evaluated_up_to_its_target(tmp_path: Path, made: list[int]) -> None:
    file = tmp_path / "races.jsonl"
    for seed in (0, 1, 0):
        run_once("judge", "asynchronous", seed, file)
    assert made == [0, 1]
    first, _ = read(file)
    assert [accuracy for _, _, accuracy in first["curve"]] == [0.3, 0.6, pytest.approx(0.9), 1.0]
    assert first["staleness_p50"] == 3


def test_a_contest_that_has_changed_is_run_again(
    tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "races.jsonl"
    run_once("judge", "synchronous", 0, file)
    changed = CONTESTS["judge"].__class__(**{**vars(CONTESTS["judge"]), "target": 0.5})
    monkeypatch.setitem(CONTESTS, "judge", changed)  # type: ignore[arg-type]
    run_once("judge", "synchronous", 0, file)
    assert made == [0, 0]


def test_an_unknown_contest_is_named() -> None:
    with pytest.raises(TbaError, match="no contest 'speed': one of equal, lengths, judge, devices"):
        main(["speed"])
