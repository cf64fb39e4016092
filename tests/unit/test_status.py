"""What `tba status` and the display say of processes."""

from __future__ import annotations

import io
import json
import math
import time
from pathlib import Path

import pytest
from rich.console import Console

from tba.config.settings import Config
from tba.runs.activity import PROCESSES, SILENT_SECONDS, Activity
from tba.runs.display import Display
from tba.runs.run_config import write_run_config
from tba.runs.status import show_status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two processes: `searcher-0` was heard of an hour ago, `trainer` just now."""
    monkeypatch.setattr("tba.runs.status._is_alive", lambda pid: True)
    monkeypatch.setenv("COLUMNS", "200")
    write_run_config(tmp_path, Config.embedded())
    Activity(tmp_path, "trainer")
    record = {"process": "searcher-0", "pid": 1, "doing": "generate", "detail": "", "since": 0.0}
    record["beat"] = time.time() - 3_600
    (tmp_path / PROCESSES / "searcher-0.json").write_text(json.dumps(record), "utf-8")
    assert SILENT_SECONDS < 3_600
    return tmp_path


def test_status_names_a_silent_process(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_status(run)
    told = [line for line in capsys.readouterr().out.splitlines() if "no sign of life" in line]
    assert len(told) == 1
    assert "searcher-0" in told[0]
    assert "3600 s" in told[0]


def test_the_display_names_a_silent_process(run: Path) -> None:
    display = Display(Config.embedded(run={"display": "none"}), run)
    display.follow(run)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(display._panel())
    assert "searcher-0: no sign of life for 3600 s (generating)" in console.export_text()


class Broken(io.StringIO):
    """A pipe that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_terminal_that_goes_away_does_not_end_the_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Printing ends with the first line that fails; what runs meanwhile, and the end, do not hear of it."""
    monkeypatch.setattr("tba.runs.plain_lines.EVERY", ((math.inf, 0.0),))
    monkeypatch.setattr("tba.runs.display._TICK_SECONDS", 0.001)
    with Display(Config.embedded(run={"display": "plain"}), run) as display:
        display._console = Console(file=Broken())
        display._thread.join()  # it gave up
        display.conclude(True)
