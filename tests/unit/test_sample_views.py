"""How samples look: on terminals of any width, in pipes, in the panel and in a log. Nothing in them is obeyed."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from test_metrics import SAMPLE
from test_samples import Recorded, group

from tba.config.settings import Config
from tba.runs.display import Display
from tba.runs.metrics import Metrics
from tba.runs.panel import panel
from tba.runs.progress import RunProgress
from tba.samples.line import SampleLines, best_of, plain_sample, sample_lines
from tba.samples.query import Query
from tba.samples.view import show
from tba.tasks import TaskSettings
from tba.types import About, Version

HOSTILE = "[red]x[/] [/bold] \x1b[2J\x1b]0;title\x07 \u202e\r"
SHOWN = "[red]x[/] [/bold] \\x1b[2J\\x1b]0;title\\x07 \\u202e\\r"


def shown(recorded: Recorded, *, width: int = 100, terminal: bool = True, full: bool = False, **query: Any) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None, highlight=False)
    show(console, "runs/x", recorded.find(**query), Query(**query), full=full)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def with_response(run: Path, text: str) -> Recorded:
    recorded = Recorded(run)
    made = group(1, "a", [1.0, 0.0])
    said = (replace(t, response=replace(t.response, text=text)) for t in made.trajectories)
    about = About(("right",), (f'{{"judge": "{len(text)}"}}', "{}"))
    recorded.log.append([replace(made, trajectories=tuple(said), about=about)], Version(0, 2))
    recorded.draws.append(3, [[0, 0]])
    return recorded


def test_everything_about_a_response_is_told(tmp_path: Path) -> None:
    text = shown(with_response(tmp_path, "first\nlast"), terminal=False)
    assert text == (
        "runs/x: 2 responses, weights of steps 0 to 0. Shown: one response of each of the newest groups.\n"
        "\n"
        "── response 0 · prompt a ──\n"
        "prompt    What is a?\n"
        "response  first\n"
        "          last\n"
        "reward    1.000 · its group of 2: 0.000 to 1.000, mean 0.500\n"
        "data      answer: a\n"
        "notes     judge: 10\n"
        "length    2 tokens, ended by itself\n"
        "made by   searcher-0, weights of step 0 · 2 steps old when merged · 3 steps old now · trained on 2 times\n"
    )


def test_a_prompt_over_time_begins_with_its_course(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path)
    for step in range(30):
        recorded.merge(("a", [0.0, step / 10]), at=step, version=step)
    lines = shown(recorded, prompt="a", num=2).splitlines()
    assert lines[2] == "prompt a"
    assert lines[4].split() == ["0", "2", "0.000", "0.000", "0.000"]
    assert lines[15].split() == ["29", "2", "1.450", "0.000", "2.900"]
    assert lines[16] == "12 of 30 versions of the weights are listed"


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_in_a_response_is_obeyed(terminal: bool, tmp_path: Path) -> None:
    text = shown(with_response(tmp_path, HOSTILE), width=200, terminal=terminal)
    assert f"response  {SHOWN}\n" in text
    assert all(character.isprintable() or character == "\n" for character in text)


@pytest.mark.parametrize("width", [20, 40, 49, 50, 80])
def test_a_terminal_wraps_long_texts_and_loses_none_of_them(width: int, tmp_path: Path) -> None:
    said = " ".join(f"word-{number}" for number in range(100)) + "東京" * 50
    lines = shown(with_response(tmp_path, said), width=width).splitlines()
    begin = next(i for i, line in enumerate(lines) if f"{line}  ".startswith("response  "))
    end = next(i for i, line in enumerate(lines) if line.startswith("reward"))
    body = lines[begin:end]
    assert all(cell_len(line) <= width for line in body)
    assert "".join("".join(body).removeprefix("response").split()) == said.replace(" ", "")


def test_a_pipe_wraps_nothing(tmp_path: Path) -> None:
    said = "word " * 300
    assert f"response  {said}\n" in shown(with_response(tmp_path, said), width=40, terminal=False)


def test_a_very_long_response_is_cut_unless_all_is_wanted(tmp_path: Path) -> None:
    said = "begin " + "x" * 50_000 + " end"
    recorded = with_response(tmp_path, said)
    short = shown(recorded, terminal=False)
    assert len(short) < 4_000
    assert "begin xxx" in short
    assert "xxx end\n" in short
    assert f"{len(said) - 1_600:,} characters left out; --full shows them" in short
    assert said in shown(recorded, terminal=False, full=True)


# ---------------------------------------------------------------------------------------------------------------------
# While a run goes on
# ---------------------------------------------------------------------------------------------------------------------


@given(
    st.text(st.characters(), max_size=300),
    st.text(st.characters(), max_size=300),
    st.integers(1, 130),
)
def test_a_sample_in_the_panel_has_three_lines_whatever_it_holds(prompt: str, response: str, width: int) -> None:
    record = {**SAMPLE, "messages": None, "prompt": prompt, "response": response, "columns": {"answer": response}}
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(SampleLines(record))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().split("\n")
    assert len(lines) == 4
    assert lines[-1] == ""
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)
    assert plain_sample(record).isprintable()
    assert cell_len(plain_sample(record)) < 250


def test_long_texts_keep_their_beginning_and_their_end() -> None:
    record = {**SAMPLE, "response": "so " + "x" * 999 + " #### 4"}
    console = Console(file=io.StringIO(), width=60, color_system=None)
    console.print(SampleLines(record))
    assert isinstance(console.file, io.StringIO)
    line = console.file.getvalue().splitlines()[2]
    assert line.startswith("  response    so xxx")
    assert line.endswith("x #### 4")


def test_the_panel_shows_the_best_of_the_newest_samples(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    metrics.write_samples(1, [{**SAMPLE, "response": "older", "reward": 9.0}])
    metrics.write_samples(2, [SAMPLE, {**SAMPLE, "response": "better", "reward": 1.0}])
    metrics.close()
    progress = RunProgress(tmp_path, 10, TaskSettings.headline, from_start=True)
    assert progress.update() == []
    best = best_of(progress.samples)
    assert best is not None
    assert best["response"] == "better"
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(panel(progress, below=sample_lines(progress.samples)))
    assert isinstance(console.file, io.StringIO)
    assert "  response    better" in console.file.getvalue()


def test_a_log_shows_a_sample_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tba.runs.display.PlainLines.due", lambda self, now: True)
    display = Display(Config.embedded(run={"display": "plain"}))
    display.follow(tmp_path)
    metrics = Metrics(tmp_path)
    for step in range(3):
        metrics.write_samples(step, [{**SAMPLE, "response": f"{HOSTILE} {step}"}])
        display._tick()
    metrics.close()
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sample: ")]
    assert told == [f"sample: reward -0.500 · 2+2? → {SHOWN} 0"]
