"""A sweep as a user runs it: killed in the middle, resumed, with a hopeless arm that is stopped early."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from small_runs import records, started, tba

from tba.runs.folder import locked
from tba.sweep.record import read_record
from tba.types import TbaError

SPACE = """
[sweep]
seeds = [5, 6]
stop_margin = 0.1

[settings]
run = {launcher = "inline", num_threads = 1}
task = {num_train = 24, num_eval = 8}
searcher = {num_responses = 4, prompts_per_batch = 2}
trainer = {num_steps = 4, num_groups = 2, group_size = 4, sync_period = 2}
evaluation = {period = 2, num_prompts = 8, prompts_per_batch = 8}
checkpoint.period = 2
metrics.tensorboard = false
reward = "held_up:right"

[space]
engine.max_new_tokens = [32, 1]
"""
GOOD, HOPELESS = "max_new_tokens=32", "max_new_tokens=1"
"""No chain has an answer of one token."""


REWARD = f"""
import time
from pathlib import Path

from tba.rewards.answer import final_answer

CHECKPOINT = Path("runs/tune/{HOPELESS}-seed5/checkpoints/step-000002")


def right(texts, answer, **columns):
    while CHECKPOINT.exists() and max(map(len, texts)) < 2 and not Path("go").exists():
        time.sleep(0.01)
    return final_answer(texts, answer)
"""
"""The task's own, which holds the second run up behind its first checkpoint."""


def wait_for(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_there():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def is_free(run: Path) -> bool:
    try:
        with locked(run):
            return True
    except TbaError:
        return False


def test_a_killed_sweep_goes_on_and_stops_the_hopeless_arm(tmp_path: Path) -> None:
    (tmp_path / "tune.toml").write_text(SPACE, "utf-8")
    (tmp_path / "held_up.py").write_text(REWARD, "utf-8")
    folder = tmp_path / "runs" / "tune"
    first, second = folder / f"{GOOD}-seed5", folder / f"{HOPELESS}-seed5"
    with started("sweep", "tune.toml", cwd=tmp_path) as process:
        wait_for(lambda: (second / "checkpoints" / "step-000002").is_dir() and bool(read_record(folder)))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    wait_for(lambda: is_free(second))  # the run has ended with the sweep
    (tmp_path / "go").touch()
    assert not (second / "summary.json").exists()
    before = (first / "metrics.jsonl").read_bytes()

    again = tba("sweep", "tune.toml", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert f"found {GOOD}-seed5" in again.stdout
    assert f"stopped {HOPELESS}" in again.stdout
    assert (first / "metrics.jsonl").read_bytes() == before, "what was finished is left alone"
    assert [r["event"] for r in records(second, "event")].count("resumed") == 1, "from its checkpoint"

    lines = {(line["arm"], line["seed"]): line for line in read_record(folder)}
    assert set(lines) == {(GOOD, 5), (HOPELESS, 5), (GOOD, 6)}, "the hopeless arm got one seed"
    assert lines[HOPELESS, 5]["value"] == 0
    assert lines[HOPELESS, 5]["resumed"]
    assert lines[GOOD, 6]["value"] > 0.1
    assert [step for step, *_ in lines[GOOD, 6]["curve"]] == [0, 2, 4]
    summary = json.loads((folder / "sweep.json").read_text("utf-8"))
    assert summary["best"] == GOOD
    assert "worse than" in summary["arms"][1]["stopped"]
    assert (folder / "sweep.png").stat().st_size > 10_000
    assert GOOD.replace("=", " ").split()[-1] in (folder / "sweep.md").read_text("utf-8")


def test_a_run_that_fails_costs_its_arm_and_not_the_sweep(tmp_path: Path) -> None:
    """Ends with exit code 1 and says why."""
    text = (
        SPACE.replace("[5, 6]", "[5]").replace("num_steps = 4", "num_steps = 2").replace('reward = "held_up:right"', "")
    )
    (tmp_path / "tune.toml").write_text(text, "utf-8")
    broken = tmp_path / "runs" / "tune" / f"{HOPELESS}-seed5"
    broken.mkdir(parents=True)
    (broken / "thesis.txt").write_text("no run", "utf-8")  # which --overwrite does not remove
    done = tba("sweep", "tune.toml", cwd=tmp_path)
    assert done.returncode == 1
    assert f"failed {HOPELESS}-seed5" in done.stdout
    found = {line["arm"]: line for line in read_record(tmp_path / "runs" / "tune")}
    assert "is not a run" in found[HOPELESS]["failure"]
    assert found[GOOD]["value"] is not None
    assert (broken / "thesis.txt").exists()
