"""The runs of a sweep as processes: each is `tba train`, started, continued or left alone, and ends with the sweep."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from tba.config.settings import parse_config, to_toml
from tba.config.text import read_toml
from tba.learn.checkpoint import list_checkpoints
from tba.sweep.settings import PlannedRun
from tba.types import TbaError

CONFIGS, LOGS = "configs", "logs"
_LOOK_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True)
class Child:
    """A run that is going on."""

    run: PlannedRun
    process: subprocess.Popen[bytes]
    handle: int
    """A descriptor that is readable once the process has ended."""
    started: float


@dataclass(frozen=True)
class Ended:
    run: PlannedRun
    code: int
    seconds: float
    """Since this process was started: a run that was resumed has taken longer."""
    failure: str
    """The last thing that it said, if it failed."""


def run_all(
    runs: Sequence[PlannedRun],
    parallel: int,
    ended: Callable[[Ended], None],
    going_on: Callable[[Sequence[PlannedRun]], None],
) -> None:
    """Run them in order, so many at a time; tell of each as it ends, and every second of those that are going on.
    Ctrl-C stops these."""
    waiting, going = list(runs), dict[int, Child]()
    with _stopped_in_order(going):
        while waiting or going:
            while waiting and len(going) < parallel:
                child = _start(waiting.pop(0))
                going[child.handle] = child
            going_on([child.run for child in going.values()])
            for handle in wait(list(going), _LOOK_SECONDS):
                assert isinstance(handle, int)
                child = going.pop(handle)
                os.close(handle)
                ended(_end(child))


def check_same_settings(run: PlannedRun) -> None:
    """TbaError if the sweep's folder has this run with other settings: its results would pass for those of these."""
    path = _config_file(run)
    if not path.exists():
        return
    before = parse_config(read_toml(path)).model_dump(mode="json")
    after = run.config.model_dump(mode="json")
    for section, values in after.items():
        old = before[section]
        for key in values.keys() | old.keys():
            if values.get(key) != old.get(key) and (section, key) != ("run", "display"):
                raise TbaError(
                    f"{run.folder.parent} has {run.name} with another {section}.{key} ({old.get(key)!r}, now "
                    f"{values.get(key)!r}): choose another sweep.name, or remove that folder"
                )


def _start(run: PlannedRun) -> Child:
    """From its newest checkpoint if it has one, else from the beginning."""
    path = _config_file(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(to_toml(run.config), "utf-8")
    os.replace(partial, path)
    found = list_checkpoints(run.folder)
    can_go_on = bool(found) and found[-1].step < run.config.trainer.num_steps
    words = ["--resume", str(run.folder)] if can_go_on else [str(path), "--overwrite"]
    log = _log_file(run)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tba.cli", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
            preexec_fn=_end_with_parent,
        )
    return Child(run, process, os.pidfd_open(process.pid), time.monotonic())


def _end(child: Child) -> Ended:
    code = child.process.wait()
    lines = _log_file(child.run).read_text("utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    failure = "" if code == 0 else (said[-1] if said else f"exit code {code}").removeprefix("tba: ")
    return Ended(child.run, code, time.monotonic() - child.started, failure)


def _end_with_parent() -> None:
    """The kernel kills the run when the sweep is gone, however it went: nobody else would know of it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _stopped_in_order(going: dict[int, Child]) -> Iterator[None]:
    """When the block ends early, each run that is going on writes its checkpoint and ends. A second Ctrl-C kills."""
    try:
        yield
    finally:
        children = list(going.values())
        try:
            for child in children:
                child.process.send_signal(signal.SIGINT)
            for child in children:
                child.process.wait()
        except KeyboardInterrupt:
            for child in children:
                child.process.kill()
                child.process.wait()
            raise


def _config_file(run: PlannedRun) -> Path:
    return run.folder.parent / CONFIGS / f"{run.name}.toml"


def _log_file(run: PlannedRun) -> Path:
    return run.folder.parent / LOGS / f"{run.name}.log"
