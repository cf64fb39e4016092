"""Ctrl-C and SIGTERM at many points of a start: said at once, no traceback, nothing left behind.

The points are phases that the run itself shows, or files that a reward function writes; nothing here waits for a time.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from small_runs import arguments, records, small_config, started, tba_here
from test_processes import until

from tba.runs.activity import LAUNCHER, TRAINER, read_activities
from tba.runs.phases import doing_text
from tba.testing import save_tiny_model

Seen = Callable[[Path], bool]


def doing(process: str, phase: str) -> Seen:
    """Whether the process shows this phase."""
    return lambda run: any(a["process"] == process and phase in doing_text(a) for a in read_activities(run))


def file(name: str) -> Seen:
    """Whether the reward function has written this file, beside the folder of the run."""
    return lambda run: (run.parent / name).exists()


def session_of(pid: int) -> list[int]:
    """The processes of this session that are left, zombies aside."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text("utf-8").rpartition(")")[2].split()[:4]
        except OSError:
            continue  # gone meanwhile
        if int(session) == pid and state != "Z":
            found.append(int(path.parent.name))
    return found


REWARDS = """
import multiprocessing, os, time
from pathlib import Path

FOLDER = Path(__file__).parent

def stays(name):
    (FOLDER / name).touch()
    time.sleep(3600)

if "at the import" == "{where}":
    stays("imported")
if "in the reward process" == "{where}" and multiprocessing.parent_process() is not None:
    stays("started")

def length(texts, **columns):
    if "in the dry call" == "{where}":
        stays("called")
    return [float(len(text)) for text in texts]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for its products to be measured."""
    folder = tmp_path_factory.mktemp("models") / "wide"
    return save_tiny_model(folder, hidden_size=1024)


def interrupted(tmp_path: Path, words: list[str], seen: Seen, number: signal.Signals) -> str:
    """Start, interrupt all processes of the terminal once it is `seen`, and see it end; what was shown."""
    run = tmp_path / "stopped"
    with started("train", *words, cwd=tmp_path) as process:
        until(lambda: seen(run), process)
        os.killpg(process.pid, number)
        output = process.communicate(timeout=300)[0]
        until_gone(process.pid)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "stopping…" in output.splitlines()
    assert not [path.read_text("utf-8") for path in run.rglob("*.error")]
    assert not [path for path in run.glob("logs/*.log") if "Traceback" in path.read_text("utf-8")]
    return output


def until_gone(session: int) -> None:
    """Ends by the time limit of tests if they stay."""
    while session_of(session):
        pass


def config_words(tmp_path: Path, **sections: dict[str, object]) -> list[str]:
    sections["run"] = {"display": "plain", **sections.get("run", {})}
    return arguments(small_config(tmp_path, "stopped", trainer={"num_steps": 100_000}, **sections))


PHASES = {
    "importing": doing(LAUNCHER, "importing"),
    "loading the model": doing(TRAINER, "loading the model"),
    "loading models": doing("searcher-0", "loading models"),
    "encoding prompts": doing("searcher-0", "encoding prompts"),
    "filling the buffer": doing(TRAINER, "filling the buffer"),
    "first evaluation": doing("searcher-0", "first evaluation"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_while_processes_start(tmp_path: Path, phase: str) -> None:
    words = config_words(tmp_path, evaluation={"num_prompts": 8, "num_samples": 64})
    output = interrupted(tmp_path, words, PHASES[phase], signal.SIGINT)
    assert "Stopped at step 0." in output


def test_sigterm_does_the_same(tmp_path: Path) -> None:
    output = interrupted(tmp_path, config_words(tmp_path), PHASES["loading models"], signal.SIGTERM)
    assert "Stopped at step 0." in output


def test_ctrl_c_while_precisions_are_measured(tmp_path: Path, model: Path) -> None:
    words = [*config_words(tmp_path), "--model", str(model), "--engine.precision", "auto"]
    interrupted(tmp_path, words, doing(LAUNCHER, "measuring precisions"), signal.SIGINT)


@pytest.mark.parametrize(
    ("where", "seen"),
    [
        ("at the import", file("imported")),
        ("in the dry call", file("called")),
        ("in the reward process", file("started")),
    ],
)
def test_ctrl_c_while_a_reward_function_is_tried_or_started(tmp_path: Path, where: str, seen: Seen) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS.format(where=where))
    words = [*config_words(tmp_path), "--reward", f"{tmp_path / 'rewards.py'}:length"]
    if where == "in the reward process":
        words += ["--reward.dry-call", "false"]
    output = interrupted(tmp_path, words, seen, signal.SIGINT)
    if where == "in the reward process":
        assert "Stopped at step 0." in output
    else:
        assert "Stopped before the run began: nothing was written." in output
        assert not (tmp_path / "stopped").exists()


@pytest.mark.parametrize("phase", ["importing", "first evaluation"])
def test_ctrl_c_with_all_in_one_process(tmp_path: Path, phase: str) -> None:
    words = config_words(tmp_path, run={"launcher": "inline"}, evaluation={"num_prompts": 8, "num_samples": 64})
    output = interrupted(tmp_path, words, PHASES[phase], signal.SIGINT)
    assert "Stopped at step 0. There is no checkpoint yet" in output


def test_a_resume_that_is_stopped_at_once_says_the_step_that_the_run_is_at(tmp_path: Path) -> None:
    first = tba_here("train", *arguments(small_config(tmp_path, "stopped", trainer={"num_steps": 4})))
    assert first.returncode == 0, first.stdout + first.stderr
    words = ["--resume", str(tmp_path / "stopped"), "--trainer.num-steps", "100000", "--run.display", "plain"]
    output = interrupted(tmp_path, words, doing(LAUNCHER, "importing"), signal.SIGINT)
    assert f"Stopped at step 4. Resume with: tba train --resume {tmp_path / 'stopped'}" in output


def test_the_second_ctrl_c_ends_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    """The Trainer is stopped by a signal, as if its checkpoint took for ever."""
    run = tmp_path / "stopped"
    with started("train", *config_words(tmp_path), cwd=tmp_path) as process:
        until(lambda: len(records(run, "train")) > 1, process)
        [trainer] = [a["pid"] for a in read_activities(run) if a["process"] == TRAINER]
        os.kill(trainer, signal.SIGSTOP)
        os.killpg(process.pid, signal.SIGINT)
        read = process.stdout
        assert read is not None
        while "stopping…" not in (line := read.readline()):
            assert line
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=300)[0]
        until_gone(process.pid)
    assert process.returncode == 130
    assert "Traceback" not in output
    assert "Stopped at step" in output


@pytest.mark.parametrize("phase", ["importing", "evaluating"])
def test_ctrl_c_in_a_command_of_one_process(tmp_path: Path, phase: str) -> None:
    """What `tba eval` says in a pipe tells where it is."""
    words = ["eval", "arithmetic", "--evaluation.num-samples", "64", "--output", str(tmp_path / "answers.jsonl")]
    with started(*words, cwd=tmp_path) as process:
        lines = process.stdout
        assert lines is not None
        while phase not in (line := lines.readline()):
            assert line, "it ended before"
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=300)[0]
        until_gone(process.pid)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert output.endswith("stopped\n")
