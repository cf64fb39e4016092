"""`tba status RUN`: what each process is doing now, what it waits for, and whether it is still there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tba.learn.checkpoint import list_checkpoints
from tba.runs.activity import SILENT_SECONDS, read_activities, silences
from tba.runs.alarms import raised
from tba.runs.metrics import read_metrics
from tba.runs.phases import doing_text
from tba.runs.progress import evaluation_text
from tba.runs.run_config import num_replayed_steps, read_run_config
from tba.runs.state import State, standing_of
from tba.runs.terminal import terminal
from tba.types import TbaError


def show_status(run: Path) -> int:
    """Print the table. Exit code 0 if the run is going or has finished, 1 if it could be resumed."""
    config = read_run_config(run)
    standing = standing_of(run)
    records = read_metrics(run)
    activities = read_activities(run)
    if not activities:
        raise TbaError(f"{run} has not started any process yet")
    evals = [r for r in records if r["kind"] == "eval"]
    alive = {a["process"]: _is_alive(a["pid"]) for a in activities}
    console = terminal()
    reached = [f"held-out {evaluation_text(e, config.task.headline)} at step {e['step']}" for e in evals[-1:]]
    stands = ", ".join([standing.state, f"step {standing.step} of {standing.num_steps}", *reached])
    console.print(Text.assemble((str(run), "bold"), f": {stands}"), soft_wrap=True)
    table = Table("process", "pid", "now", "for", "holds")
    silent = silences(activities)
    for activity in activities:
        name = activity["process"]
        table.add_row(*map(Text, _row(activity, alive[name], silent[name])))
    console.print(table)
    for name, message in raised(records).items():
        console.print(Text.assemble((f"alarm: {name}", "red"), f". {message}"), soft_wrap=True)
    can_go_on = standing.state in (State.STOPPED, State.CRASHED) and num_replayed_steps(run) is None
    if can_go_on and list_checkpoints(run):
        console.print(f"Resume with: tba train --resume {run}", markup=False, soft_wrap=True)
    elif can_go_on:
        console.print("There is no checkpoint: start again with --overwrite.")
    return 1 if standing.state in (State.STOPPED, State.CRASHED) else 0


def _row(activity: dict[str, Any], alive: bool, silent_seconds: float) -> tuple[str, str, str, str, str]:
    doing = doing_text(activity)
    now = doing if alive else f"not running (last: {doing})"
    if alive and silent_seconds > SILENT_SECONDS:
        now += f"; no sign of life for {silent_seconds:.0f} s"
    seconds = f"{time.time() - activity['since']:.1f} s" if alive else ""
    holds = f"step {activity['step']}" if "step" in activity else ""
    holds = f"weights of step {activity['version']}" if "version" in activity else holds
    return activity["process"], str(activity["pid"]), now, seconds, holds


def _is_alive(pid: int) -> bool:
    """Alive, and still ours: a process id may have been given to another program since."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    try:
        return b"multiprocessing" in (command := Path(f"/proc/{pid}/cmdline").read_bytes()) or b"tba" in command
    except OSError:
        return True  # no /proc on this system: believe the process table
