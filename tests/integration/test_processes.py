"""Runs of the local launcher, with processes killed where it hurts."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import (
    arguments,
    assert_accounts_add_up,
    assert_nothing_doubled,
    records,
    rollouts,
    small_config,
    started,
    tba,
    tba_here,
)

from tba.learn.checkpoint import list_checkpoints
from tba.runs.activity import read_activities
from tba.runs.metrics import read_metrics
from tba.search.hand_up import GIVE_UP_AFTER

EXAMPLES = Path(__file__).parents[2] / "examples"


def until(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 300) -> Any:
    """Poll until something is there. Fails, rather than waits on, if the run ends or nothing comes."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        if process.poll() is not None:
            pytest.fail(f"the run ended first: {process.communicate()[0]}")
        time.sleep(0.01)
    pytest.fail("the awaited did not happen")


def pid_of(run: Path, name: str, newer_than: int = 0) -> int | None:
    found = [a["pid"] for a in read_activities(run) if a["process"] == name]
    return found[0] if found and found[0] != newer_than else None


def test_searchers_killed_at_random_moments_are_replaced_and_nothing_merged_is_lost(tmp_path: Path) -> None:
    """Three kills while groups stream up; each time another takes over, and the Trainer goes on."""
    config = small_config(tmp_path, "killed", searcher={"num_searchers": 2}, trainer={"num_steps": 100_000})
    run = tmp_path / "killed"
    rng = random.Random(0)
    with started("train", *arguments(config)) as process:
        killed = {0: 0, 1: 0}
        for index in (0, 1, 0):
            pid = until(lambda i=index: pid_of(run, f"searcher-{i}", newer_than=killed[i]), process)
            wanted = len(records(run, "train")) + rng.randrange(1, 10)
            until(lambda n=wanted: len(records(run, "train")) >= n, process)
            os.kill(pid, signal.SIGKILL)
            killed[index] = pid
        # The third incarnation of Searcher 0 delivers.
        until(lambda: any(r["source"] == "searcher-0.2" for r in records(run, "search")), process)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    restarts = [r for r in records(run) if r.get("event") == "searcher_restarted"]
    assert [r["searcher"] for r in restarts] == [0, 1, 0]
    assert all("SIGKILL" in r["why"] for r in restarts)
    assert_nothing_doubled(rollouts(run), num_responses=4)
    summary = assert_accounts_add_up(run)
    assert summary["searchers_restarted"] == 3
    dead = {"searcher-0", "searcher-1", "searcher-0.1"}
    assert {name for name in summary if name.startswith("responses_lost/")} == {f"responses_lost/{n}" for n in dead}
    assert summary["responses_lost"] == sum(summary[f"responses_lost/{name}"] for name in dead)
    assert 0 < summary["overlap_fraction"] <= 1


def test_a_trainer_killed_during_a_save_loses_nothing_that_was_merged(tmp_path: Path) -> None:
    config = small_config(tmp_path, "saved", trainer={"num_steps": 100_000}, checkpoint={"period": 2, "keep_last": 2})
    run = tmp_path / "saved"
    with started("train", *arguments(config)) as process:
        until(lambda: (run / "checkpoints" / "step-000004").exists(), process)
        trainer = pid_of(run, "trainer")
        until(lambda: list((run / "checkpoints").glob(".step-*.partial")), process)
        os.kill(trainer, signal.SIGKILL)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 1
    assert "the Trainer died" in output
    before = rollouts(run)
    last = list_checkpoints(run)[-1].step + 10
    resumed = tba_here("train", "--resume", str(run), "--trainer.num-steps", str(last))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    after = rollouts(run)
    assert_nothing_doubled(after, num_responses=4)
    columns = ["source", "serial", "merge", "response", "reward"]
    assert set(before[columns].itertuples(index=False)) <= set(after[columns].itertuples(index=False))
    assert records(run, "train")[-1]["step"] == last
    assert not list((run / "checkpoints").glob(".step-*"))
    assert_accounts_add_up(run)


def test_data_that_a_killed_trainer_merged_have_their_true_age(tmp_path: Path) -> None:
    """It is killed once the newest groups in the log are of weights that no checkpoint has, and goes on from step 4."""
    config = small_config(
        tmp_path,
        "fork",
        trainer={"num_steps": 4},
        buffer={"recent_fraction": 1.0},
        checkpoint={"period": 0},
        evaluation={"period": 0},
    )
    run = tmp_path / "fork"
    resume = ["train", "--resume", str(run), "--trainer.num-steps"]
    finished = tba_here("train", *arguments(config))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    before = pid_of(run, "trainer") or 0
    with started(*resume, "100000") as process:
        trainer = until(lambda: pid_of(run, "trainer", newer_than=before), process)
        # Groups come in the order of their versions, so the newest are of the latest; a step draws two.
        until(lambda: (rollouts(run)["version"] > 4).sum() >= 2 * 4, process)
        os.kill(trainer, signal.SIGKILL)
        process.communicate(timeout=300)
    again = tba_here(*resume, "12")
    assert again.returncode == 0, again.stdout + again.stderr

    made = [r for r in read_metrics(run) if r["kind"] == "train"]
    assert [r["step"] for r in made] == list(range(1, 13))
    assert all(int(age) >= 0 for r in made for age in r["staleness/counts"])
    assert json.loads((run / "epochs.json").read_text()) == {n: {"epoch": 0, "step": 4} for n in ("1", "2")}
    frame = rollouts(run)
    draws = [json.loads(line)["rows"] for line in (run / "draws.jsonl").read_text().splitlines()]
    for record, rows in list(zip(made, draws, strict=True))[4:]:
        drawn = frame.iloc[[row for group in rows for row in group]]
        now, version = record["step"] - 1, drawn["version"]
        # The last step in common: that of the fork, unless the data are of the same line.
        common = version.where(drawn["epoch"] == 2, version.clip(upper=4))
        ages = (version - common) + (now - common)
        assert record["staleness/counts"] == Counter(map(str, ages))
        assert record["step"] > 5 or ((drawn["epoch"] == 1) & (version > 4)).all(), "the newest at the resume"
    # Each start of the Searcher sees one epoch: no version means two different weights.
    epochs = {("searcher-0", 0), ("searcher-0.1", 1), ("searcher-0.2", 2)}
    assert {(r["source"], r.get("epoch", 0)) for r in records(run, "search")} <= epochs

    replayed = tba("replay", str(run), "--run.name", "again")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    ages_again = [r["staleness/counts"] for r in records(tmp_path / "again", "train")]
    assert ages_again == [r["staleness/counts"] for r in made]


def test_ctrl_c_saves_and_says_how_to_resume(tmp_path: Path) -> None:
    config = small_config(tmp_path, "stopped", run={"display": "plain"}, trainer={"num_steps": 100_000})
    run = tmp_path / "stopped"
    with started("train", *arguments(config)) as process:
        until(lambda: len(records(run, "train")) > 6, process)
        status = tba_here("status", str(run))
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: every process of the group gets it
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 130
    assert_accounts_add_up(run)
    assert f"tba train --resume {run}" in output.replace("\n", "")
    assert "trainer" in status.stdout
    assert "running" in status.stdout
    step = records(run, "train")[-1]["step"]
    assert (run / "checkpoints" / f"step-{step:06d}").is_dir()
    again = tba_here("train", "--resume", str(run), "--trainer.num-steps", str(step + 4))
    assert again.returncode == 0, again.stdout + again.stderr
    assert records(run, "train")[-1]["step"] == step + 4
    assert_nothing_doubled(rollouts(run), num_responses=4)
    assert "finished" in tba_here("status", str(run)).stdout
    evaluated = tba(
        "eval", str(run / "checkpoints" / f"step-{step + 4:06d}" / "model"), "--evaluation.num-samples", "4"
    )
    assert evaluated.returncode == 0, evaluated.stderr
    assert "pass@4" in evaluated.stdout
    assert "accuracy" in evaluated.stdout


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    config = small_config(tmp_path, "orphans", trainer={"num_steps": 100_000})
    run = tmp_path / "orphans"
    with started("train", *arguments(config)) as process:
        until(lambda: records(run, "train"), process)
        pids = [a["pid"] for a in read_activities(run)]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert len(pids) == 2
    deadline = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a child is still there"
        time.sleep(0.01)


def test_weights_taken_in_flight_are_named_token_by_token(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        "flight",
        engine={"in_flight_updates": True},
        trainer={"num_steps": 80, "sync_period": 1},
        searcher={"prompts_per_batch": 8},
    )
    finished = tba_here("train", *arguments(config))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    frame = rollouts(tmp_path / "flight")
    runs = frame["token_versions"].map(len)
    assert runs.max() > 1
    for versions, tokens in zip(frame["token_versions"], frame["tokens"], strict=True):
        assert sum(part["num_tokens"] for part in versions) == len(tokens)


def test_a_full_disk_stops_the_run_in_order(tmp_path: Path) -> None:
    """A limit on file size stands in for the disk: the checkpoint's weights do not fit."""
    config = small_config(tmp_path, "full", run={"launcher": "inline"})

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-m", "tba.cli", "train", *arguments(config)]
    full = subprocess.run(command, capture_output=True, text=True, timeout=600, preexec_fn=limit)
    assert full.returncode == 2, full.stdout + full.stderr
    assert "space" in full.stderr
    assert "--resume" in full.stderr
    assert not list((tmp_path / "full" / "checkpoints").glob("*"))
    assert_nothing_doubled(rollouts(tmp_path / "full"), num_responses=4)


MOODS = ("raise", "hang", "nan", "fine", "fine", "fine")
MOODY = """
import threading

def moody(texts, mood):
    if mood[0] == "raise":
        raise RuntimeError("bad mood")
    if mood[0] == "hang":
        threading.Event().wait()
    rewards = [len(text) / 10 for text in texts]
    return [float("nan"), *rewards[1:]] if mood[0] == "nan" else rewards
"""


def test_rewards_that_fail_are_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    """Ended once each kind of failure has been met and steps were made after it, however long that takes."""
    (tmp_path / "moody.py").write_text(MOODY)
    rows = [{"prompt": f"{a}+{a}+1=\n", "mood": mood} for a, mood in enumerate(MOODS * 2, 1)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections: dict[str, Any] = {"trainer": {"num_steps": 100_000}, "reward": {"timeout_seconds": 2, "dry_call": False}}
    task = ["--task.data", "rows.jsonl", "--task.num-eval", "1", "--reward", "moody:moody"]
    run = tmp_path / "moody"

    def failures() -> list[dict[str, Any]]:
        return [r for r in records(run) if r.get("event") == "reward_failed"]

    words = arguments(small_config(tmp_path, "moody", **sections), without="task")
    with started("train", *words, *task, cwd=tmp_path) as process:
        until(lambda: {"raised", "timeout", "not_finite"} <= {r["why"] for r in failures()}, process)
        num_steps = len(records(run, "train"))
        until(lambda: len(records(run, "train")) > num_steps, process)
        until(lambda: any(r["failed"] for r in records(run, "search")), process)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    assert all(r["prompt_id"] and r["function"] == "moody" for r in failures())
    assert json.loads((run / "summary.json").read_text())["rewards_failed"] > 0


def test_the_example_of_an_own_objective_trains_and_resumes(tmp_path: Path) -> None:
    """With processes, from another folder, by the command that the example shows."""
    objective = f"{EXAMPLES / 'own_objective' / 'objectives.py'}:ClippedPolicyGradient"
    config = small_config(tmp_path, "own", trainer={"num_steps": 4}, checkpoint={"period": 2})
    words = [*arguments(config, without="objective"), "--objective.kind", objective, "--objective.clip", "0.3"]
    done = tba("train", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run = tmp_path / "own"
    assert all(0 <= record["clipped_fraction"] <= 1 for record in records(run, "train"))
    assert not any("beta" in record for record in records(run, "train")), "that is another objective's"
    more = tba("train", "--resume", str(run), "--trainer.num-steps", "6", cwd=tmp_path)
    assert more.returncode == 0, more.stdout + more.stderr
    assert [record["step"] for record in records(run, "train")] == [1, 2, 3, 4, 5, 6]


def test_the_examples_run(tmp_path: Path) -> None:
    script = EXAMPLES / "own_reward" / "train.py"
    words = [sys.executable, str(script), "--num-steps", "4", "--root", str(tmp_path / "runs")]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "reward" in shown.stdout
    rewards = f"{script.parent / 'rewards.py'}:right_answer,{script.parent / 'rewards.py'}:brevity"
    line = [
        "train",
        "--model",
        "arithmetic",
        "--task.data",
        str(script.parent / "prompts.jsonl"),
        "--task.num-eval",
        "8",
    ]
    line += ["--reward", rewards, "--reward.weights", "1,0.2", "--engine.max-new-tokens", "32"]
    line += [
        "--trainer.num-steps",
        "4",
        "--trainer.num-groups",
        "2",
        "--run.root",
        str(tmp_path / "runs"),
        "--run.name",
        "x",
    ]
    finished = tba(*line, cwd=tmp_path)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "rewards/brevity/mean" in records(tmp_path / "runs" / "x", "search")[0]


def test_a_run_whose_restarts_are_used_up_saves_and_ends_in_one_line(tmp_path: Path) -> None:
    """The Searcher is killed, started again, and killed once more than the run allows."""
    config = small_config(tmp_path, "used-up", run={"max_restarts": 1}, trainer={"num_steps": 100_000})
    run = tmp_path / "used-up"
    with started("train", *arguments(config)) as process:
        killed = 0
        for name in ("searcher-0", "searcher-0.1"):
            until(lambda n=name: any(r["source"] == n for r in records(run, "search")), process)
            killed = pid_of(run, "searcher-0", newer_than=killed)
            os.kill(killed, signal.SIGKILL)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 2, output
    [line] = output.splitlines()
    assert "Searchers died more than run.max_restarts = 1 times" in line
    assert "SIGKILL" in line
    events = [(r["event"], r["source"]) for r in records(run, "event") if r["event"].startswith("searcher_")]
    assert events == [("searcher_restarted", "searcher-0"), ("searcher_lost", "searcher-0.1")]
    summary = assert_accounts_add_up(run)
    assert {"responses_lost/searcher-0", "responses_lost/searcher-0.1"} <= set(summary)
    step = records(run, "train")[-1]["step"]
    assert list_checkpoints(run)[-1].step == step
    assert_nothing_doubled(rollouts(run), num_responses=4)


@pytest.mark.parametrize("launcher", ["inline", "local"])
def test_a_reward_that_never_works_ends_the_run_in_one_line(tmp_path: Path, launcher: str) -> None:
    """A mistake of the user's: no Searcher is started again, whatever run.max_restarts allows."""
    (tmp_path / "broken.py").write_text("def broken(completions, **columns):\n    raise RuntimeError('out of order')\n")
    config = small_config(
        tmp_path,
        "broken",
        run={"launcher": launcher},
        searcher={"prompts_per_batch": 8},
        evaluation={"period": 0},
    )
    words = [*arguments(config), "--reward", f"{tmp_path / 'broken.py'}:broken", "--reward.dry-call", "false"]
    ended = tba("train", *words)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    [line] = ended.stderr.splitlines()
    assert f"no usable reward for {GIVE_UP_AFTER} prompts in a row" in line
    assert "broken: RuntimeError: out of order" in line
    events = records(tmp_path / "broken", "event")
    assert not [r for r in events if r["event"].startswith("searcher_")], "no restart"
    assert records(tmp_path / "broken", "train") == []
