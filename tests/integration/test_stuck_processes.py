"""Runs of the local launcher whose processes are there and do nothing: stopped by a signal, as if they hung."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from small_runs import arguments, assert_nothing_doubled, records, rollouts, small_config, started, tba_here
from test_processes import pid_of, until

from tba.runs.activity import ENDING, read_activities

STUCK = 15.0
"""Seconds: more than a process of such a run needs between two signs of life on a busy machine, its start included."""


def children_of(pid: int) -> set[int]:
    """Processes below this one, by their parents."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        parents[int(path.parent.name)] = int(fields[1])
    found, waiting = set(), [pid]
    while waiting:
        parent = waiting.pop()
        below = {child for child, of in parents.items() if of == parent} - found
        found |= below
        waiting += below
    return found


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [r for r in records(run, "event") if r["event"] == name]


def doing(run: Path, process: str) -> str | None:
    return next((a["doing"] for a in read_activities(run) if a["process"] == process), None)


def test_a_searcher_that_hangs_is_told_killed_with_its_reward_processes_and_replaced(tmp_path: Path) -> None:
    config = small_config(
        tmp_path, "hangs", run={"stuck_seconds": STUCK}, trainer={"num_steps": 100_000}, evaluation={"period": 0}
    )
    run = tmp_path / "hangs"
    with started("train", *arguments(config)) as process:
        until(lambda: records(run, "train"), process)
        pid = pid_of(run, "searcher-0")
        assert pid is not None
        children = children_of(pid)
        os.kill(pid, signal.SIGSTOP)
        until(lambda: events(run, "process_stuck"), process)
        # The one that took over delivers.
        until(lambda: any(r["source"] == "searcher-0.1" for r in records(run, "search")), process)
        until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), process)
        os.killpg(process.pid, signal.SIGINT)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 130, output
    assert children, "there was a reward process"
    [stuck], [restarted] = events(run, "process_stuck"), events(run, "searcher_restarted")
    assert (stuck["process"], stuck["searcher"]) == ("searcher-0", 0)
    assert stuck["doing"]
    assert stuck["seconds"] >= STUCK
    assert "no sign of life" in restarted["why"]
    # The Trainer went on meanwhile, with what it had.
    assert any("searcher-0" in r["message"] for r in events(run, "no_new_groups"))
    assert_nothing_doubled(rollouts(run), num_responses=4)


def test_a_searcher_that_hangs_in_the_last_evaluation_does_not_hold_up_the_end(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    config = small_config(
        tmp_path,
        "last",
        run={"stuck_seconds": STUCK},
        trainer={"num_steps": 4},
        evaluation={"period": 1_000},
        reward={"timeout_seconds": 5},
    )
    run = tmp_path / "last"
    words = [*arguments(config), "--reward", f"{tmp_path / 'slow.py'}:waits_at_the_end"]
    with started("train", *words, cwd=tmp_path) as process:
        until(lambda: doing(run, "trainer") == ENDING and doing(run, "searcher-0") == "evaluate", process)
        os.kill(pid_of(run, "searcher-0") or 0, signal.SIGSTOP)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    [stuck] = events(run, "process_stuck")
    assert (stuck["process"], stuck["doing"].split()[0]) == ("searcher-0", "last")
    assert [r["searcher"] for r in events(run, "searcher_lost")] == [0]
    assert events(run, "searcher_restarted") == []
    assert json.loads((run / "summary.json").read_text())["steps"] == 4
    assert "finished" in tba_here("status", str(run)).stdout


SLOW = """
import os
from pathlib import Path

def waits_at_the_end(completions, **columns):
    if Path("last/checkpoints/step-000004").exists():
        os.read(os.pipe()[0], 1)
    return [float(len(completion)) for completion in completions]
"""
"""A reward that gives no answer once the last checkpoint is written."""


def test_a_trainer_that_hangs_ends_the_run_in_one_line(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        "trainer",
        run={"stuck_seconds": STUCK},
        trainer={"num_steps": 100_000},
        evaluation={"period": 0},
        checkpoint={"period": 2, "keep_last": 2},
    )
    run = tmp_path / "trainer"
    with started("train", *arguments(config)) as process:
        until(lambda: len(records(run, "train")) > 4, process)
        pids = [a["pid"] for a in read_activities(run)]
        os.kill(pid_of(run, "trainer") or 0, signal.SIGSTOP)
        output = process.communicate(timeout=300)[0]
    assert process.returncode == 1, output
    [line] = output.splitlines()
    assert "the Trainer gave no sign of life" in line
    assert f"tba train --resume {run}" in line
    assert [r["process"] for r in events(run, "process_stuck")] == ["trainer"]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    last = records(run, "train")[-1]["step"] + 2
    again = tba_here("train", "--resume", str(run), "--trainer.num-steps", str(last))
    assert again.returncode == 0, again.stdout + again.stderr
