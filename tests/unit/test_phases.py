"""What processes are doing, in words: the same in the panel, in plain lines and in `tba status`."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from told_time import Clock

from tba.config.settings import Config
from tba.runs import activity as activity_module
from tba.runs import plain_lines
from tba.runs.activity import PROCESSES, Activity, forget_activities, read_activities
from tba.runs.bars import Work
from tba.runs.panel import panel, waiting_panel
from tba.runs.phases import doing_text
from tba.runs.plain_lines import PlainLines
from tba.runs.progress import RunProgress
from tba.runs.run_config import write_run_config
from tba.runs.status import show_status
from tba.runs.terminal import Phrases, terminal
from tba.runs.wording import clock as clock_text
from tba.runs.wording import counted, number, percent
from tba.tasks import TaskSettings

SEARCH = {
    "kind": "search",
    "step": 3,
    "time": 9.0,
    "source": "searcher-0",
    "version": 2,
    "reward": 0.5,
    "rewards/right/mean": 0.25,
    "rewards/short/mean": 0.75,
    "kl": -0.001,
    "failed": 1,
    "tokens_per_second": 1234.5,
    "completions/mean_length": 27.0,
    "completions/clipped_ratio": 0.125,
}
TRAIN = {
    "kind": "train",
    "step": 3,
    "time": 10.0,
    "loss": 0.25,
    "grad_norm": 1.5,
    "reward": 0.75,
    "frac_reward_zero_std": 0.5,
    "tokens": 100,
    "step_time": 1.0,
    "memory_mb": 1500.0,
    "staleness/mean": 1.5,
    "staleness/max": 4,
    "buffer/size": 2048,
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(activity_module, "time", clock)
    monkeypatch.setattr(plain_lines, "time", clock)
    return clock


def progress_of(run: Path, *records: dict[str, object]) -> RunProgress:
    progress = RunProgress(run, 10, TaskSettings.headline)
    with open(run / "metrics.jsonl", "a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    progress.update()
    return progress


def shown(renderable: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text().splitlines()


# ---------------------------------------------------------------------------------------------------------------------
# Counts
# ---------------------------------------------------------------------------------------------------------------------


def test_work_of_known_length_says_how_much_is_done(tmp_path: Path, clock: Clock) -> None:
    activity = Activity(tmp_path, "searcher-0")
    with activity("evaluate", "first evaluation", total=64, unit="prompts"):
        clock.now += 1
        activity.advance(12)
        assert doing_text(read_activities(tmp_path)[0]) == "first evaluation: 12/64 prompts"
        with activity("generate", "8 responses"):
            assert doing_text(read_activities(tmp_path)[0]) == "generating 8 responses"
        assert doing_text(read_activities(tmp_path)[0]) == "first evaluation: 12/64 prompts", "as before"
        clock.now += 1
        activity.reached(100)
        assert doing_text(read_activities(tmp_path)[0]) == "first evaluation: 64/64 prompts", "never more than all"
    assert doing_text(read_activities(tmp_path)[0]) == "idle"


def test_what_is_gone_on_with_has_lasted_since_its_beginning(tmp_path: Path, clock: Clock) -> None:
    activity = Activity(tmp_path, "trainer")
    with activity("fill", total=4, unit="groups"):
        began = read_activities(tmp_path)[0]["since"]
        clock.now += 5
        with activity("merge"):
            clock.now += 5
        assert read_activities(tmp_path)[0]["since"] == began
    assert read_activities(tmp_path)[0]["since"] == began + 10, "what has no name is always new"


def test_a_launcher_is_seen_until_it_withdraws(tmp_path: Path) -> None:
    activity = Activity(tmp_path, "launcher")
    with activity("prepare", "importing torch and transformers"):
        assert [doing_text(a) for a in read_activities(tmp_path)] == ["importing torch and transformers"]
    activity.withdraw()
    activity.beat()
    assert read_activities(tmp_path) == []


def test_what_processes_of_an_earlier_launch_did_is_forgotten(tmp_path: Path) -> None:
    Activity(tmp_path, "trainer")
    (tmp_path / PROCESSES / "searcher-0.starts").write_text("1")
    forget_activities(tmp_path)
    assert [path.name for path in (tmp_path / PROCESSES).iterdir()] == ["searcher-0.starts"]


@pytest.mark.parametrize(
    ("kind", "detail", "words"),
    [
        ("checkpoint", "step 40", "saving a checkpoint of step 40"),
        ("finish", "", "waiting for Searchers to end"),
        ("fill", "waits for the first 16 groups", "filling the buffer"),  # of tba 0.1.0
        ("evaluate", "version 3", "evaluate version 3"),  # likewise
        ("something new", "here", "something new here"),
    ],
)
def test_every_activity_has_words(kind: str, detail: str, words: str) -> None:
    assert doing_text({"doing": kind, "detail": detail}) == words


def test_status_says_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tba.runs.status._is_alive", lambda pid: True)  # the process of these tests is no run's
    write_run_config(tmp_path, Config.embedded())
    with Activity(tmp_path, "searcher-0")("evaluate", "first evaluation", total=64, unit="prompts"):
        show_status(tmp_path)
    assert "first evaluation: 0/64 prompts" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------------
# The panel
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_phrase_of_the_panel_is_broken(tmp_path: Path, width: int) -> None:
    progress = progress_of(tmp_path, TRAIN, SEARCH)
    activity = Activity(tmp_path, "searcher-0")
    with activity("evaluate", "first evaluation", total=64, unit="prompts"):
        doing = [{**a, "since": 0.0} for a in read_activities(tmp_path)]
    lines = shown(panel(progress, doing, seconds=75.0), width)
    assert {len(line) for line in lines} == {width}
    for phrase in (
        *("step 3/10 · 1:15", "reward 0.500", "cut off 12 %", "KL 0.00", "length 27 tokens", "1 reward failed"),
        *("right 0.250", "short 0.750", "reward 0.750", "groups without signal 50 %", "1.5 steps old (at most 4)"),
        *("2,048 in the buffer", "loss 0.25", "grad norm 1.5", "100 tok/s", "1.5 GB", "weights of step 2"),
        *("1,234 tok/s", "first evaluation: 0/64 prompts"),
    ):
        assert [phrase for line in lines if phrase in line], phrase
    assert "KL -0.00" not in "".join(lines)


def test_many_searchers_share_a_row(tmp_path: Path) -> None:
    reports = [{**SEARCH, "source": f"searcher-{i}", "version": i} for i in range(12)]
    lines = shown(panel(progress_of(tmp_path, TRAIN, *reports)), 100)
    assert len([line for line in lines if "searcher" in line]) == 1
    assert [line for line in lines if "12 exploring" in line and "weights of steps 0–11" in line]


def test_before_the_first_step_every_process_has_a_row(tmp_path: Path, clock: Clock) -> None:
    progress = progress_of(tmp_path)
    activity = Activity(tmp_path, "trainer")
    with activity("fill", total=16, unit="groups"):
        clock.now += 1
        activity.reached(8)
        lines = shown(panel(progress, read_activities(tmp_path), seconds=3.0), 80)
    assert [line for line in lines if "trainer" in line and "filling the buffer: 8/16 groups ━━" in line]
    assert "0:03  checking the input" in shown(waiting_panel("checking the input", 3.0), 80)[1]


def test_phrases_fill_lines_and_stay_whole() -> None:
    assert shown(Phrases(["one", "two words", "three"]), 16) == ["one · two words", "three"]
    assert shown(Phrases(["a phrase that has no room"]), 10) == ["a phrase …"]


# ---------------------------------------------------------------------------------------------------------------------
# Lines
# ---------------------------------------------------------------------------------------------------------------------


def test_a_plain_line_says_something_new(tmp_path: Path, clock: Clock) -> None:
    progress, lines = progress_of(tmp_path, TRAIN, SEARCH), PlainLines()
    first = lines.line(20.0, progress, "", ())
    assert first.startswith("0:20 step 3/10 · reward of new responses 0.500 · loss 0.25")
    activity = Activity(tmp_path, "trainer")
    with activity("checkpoint", "step 3"):
        clock.now += 12
        second = lines.line(30.0, progress, "", read_activities(tmp_path))
        assert second == "0:30 step 3/10 · trainer: saving a checkpoint of step 3 for 0:12"
        assert lines.line(40.0, progress, "", read_activities(tmp_path)) == "", "all is as it was"
        clock.now += 30
        assert lines.line(70.0, progress, "", read_activities(tmp_path)).endswith("for 0:42")


def test_plain_lines_become_fewer() -> None:
    lines, told = PlainLines(), []
    for now in range(1, 3_600):
        if lines.due(float(now)):
            told.append(now)
            lines.line(float(now), None, f"at {now}", ())
    gaps = [after - before for before, after in pairwise(told)]
    assert gaps == sorted(gaps)
    assert (gaps[0], gaps[-1]) == (10, 60)


def test_output_that_is_no_terminal_is_not_wrapped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    long = "word " * 60
    terminal().print(long)
    assert capsys.readouterr().out == f"{long}\n"


def test_work_in_a_pipe_speaks_at_each_phase_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    output, now = io.StringIO(), [0.0]
    with Work(Console(file=output, width=200), clock_now=lambda: now[0]) as work:
        work.begin("checking the input", silently=True)
        work.begin("loading the model")
        now[0] = 5.0
        work.begin("training", 4, "steps")
        for done in range(1, 5):
            now[0] += 6.0
            work.reached(done, f"loss {done}.0")
    assert output.getvalue().splitlines() == [
        "0:00 loading the model",
        "0:05 training",
        "0:17 training: 2/4 steps · loss 2.0 · 0:12 left",
        "0:29 training: 4/4 steps · loss 4.0",
    ]
    assert plain_lines.seconds_between(0.0) == 10.0


def test_numbers_as_people_read_them() -> None:
    assert (counted(1, "group"), counted(1_600, "group"), counted(0, "step")) == ("1 group", "1,600 groups", "0 steps")
    assert (clock_text(7.9), clock_text(62), clock_text(3_723)) == ("0:07", "1:02", "1:02:03")
    assert (number(-0.001, ".2f"), number(-0.5, ".2f"), number(None, ".2f")) == ("0.00", "-0.50", "–")
    assert (percent(0.031), percent(None), percent(-0.0001, ".1f")) == ("3 %", "–", "0.0 %")
