"""The folder of a run: made once, held by one process at a time, never written over by accident.

The folder belongs to the process that holds the lock on its file `.lock`. Neither the folder nor that file is ever
renamed or removed, not even by `--overwrite`, which empties the folder under the lock. So all processes contend for
one and the same file, and no two of them hold it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tba.config.settings import Config
from tba.runs.run_config import CONFIG, PARTIAL, place_config, read_run_config, stage_config
from tba.types import TbaError

LOCK = ".lock"
"""Its modification time is when a process last began to hold the run."""
_LOCK_TRIES, _LOCK_SECONDS = 5, 0.02
"""Whoever only looks whether a run is held has its lock for some microseconds, which is no reason to refuse."""
_MARKS = {LOCK, "metrics.jsonl", "checkpoints", "rollouts"}
"""What a run has besides its settings, one of these at least."""
_ASIDE = ".replaced-"


@contextmanager
def new_run(config: Config, *, overwrite: bool) -> Iterator[Path]:
    """Make the folder, write the settings into it and hold it until the end of the block.

    A folder that exists is refused. With `overwrite` a run gives way, unless a process holds it; nothing else does.
    """
    name = config.run.name or f"{config.task.kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    if Path(name).name != name or name in (".", ".."):
        raise TbaError(f"run.name = {name!r} must be a plain folder name; use run.root for the path")
    run = Path(config.run.root) / name
    exists = f"{run} exists already: add --resume {run} to continue it, --overwrite, or another run.name"
    try:
        run.mkdir(parents=True)
    except OSError as error:
        if not os.path.lexists(run):
            raise TbaError(f"cannot make the run folder {run}: {error.strerror}; choose another run.root") from None
        if not overwrite:
            raise TbaError(exists) from None
        _check_replaceable(run)
    with locked(run):
        if not overwrite and set(os.listdir(run)) - {LOCK}:  # somebody has used the moment before the lock
            raise TbaError(exists)
        _begin(run, config)
        yield run


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run for this process: two at once would write over each other. The lock goes with its holder."""
    path = run / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o660)
    except OSError as error:
        raise TbaError(f"cannot lock {run}: {error.strerror}; you need to be able to write there") from None
    try:
        try:
            _lock(descriptor)
            if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                raise FileNotFoundError  # somebody has removed the folder by hand meanwhile
        except BlockingIOError:
            raise TbaError(f"{run} is being run by another process: see tba status {run}") from None
        except FileNotFoundError:
            raise TbaError(f"{run} was removed just now: start again") from None
        except OSError as error:
            raise TbaError(f"cannot lock {run}: {error.strerror}; choose a run.root on another file system") from None
        with suppress(OSError):
            os.utime(descriptor)
        yield
    finally:
        os.close(descriptor)


def is_held(run: Path) -> bool:
    """Whether a process holds the run now. Changes nothing there, and asks the lock, not the process table."""
    try:
        descriptor = os.open(run / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # nobody can hold what is not there
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks, on which no run can be started
    finally:
        os.close(descriptor)
    return False


def last_started(run: Path) -> float:
    """When somebody last started or resumed the run, in seconds since 1970; of a run without a lock, its settings'
    time."""
    try:
        return os.lstat(run / LOCK).st_mtime
    except OSError:
        return os.lstat(run / CONFIG).st_mtime


def _lock(descriptor: int) -> None:
    for _ in range(_LOCK_TRIES - 1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOCK_SECONDS)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _begin(run: Path, config: Config) -> None:
    """Put the settings of a new run into the folder, in place of all that is there. The caller holds the lock.

    What fails leaves the folder as it was. At every moment it is empty or a run, the old one or the new: if the
    process is killed here, the folder can be replaced again.
    """
    old = [name for name in os.listdir(run) if name not in (LOCK, CONFIG, PARTIAL)]
    try:
        staged = stage_config(run, config)
        if not old:
            place_config(run, staged)
            return
        aside = Path(tempfile.mkdtemp(prefix=_ASIDE, dir=run))
        try:
            _move(old, run, aside)
            try:
                place_config(run, staged)
            except OSError:
                _move(old, aside, run)
                raise
        except OSError:
            aside.rmdir()
            raise
    except OSError as error:
        raise TbaError(f"cannot begin the run in {run}: {error.strerror}; choose another run.root") from None
    with suppress(RecursionError):
        shutil.rmtree(aside, ignore_errors=True)


def _move(names: Sequence[str], source: Path, target: Path) -> None:
    """Move entries of a folder, all or none."""
    for done, name in enumerate(names):
        try:
            os.rename(source / name, target / name)
        except OSError:
            _move(names[:done], target, source)
            raise


def _check_replaceable(run: Path) -> None:
    """TbaError unless the folder is empty or a run: its settings are ours and whole, and it has the marks of one."""
    if run.is_symlink():
        raise TbaError(
            f"{run} is a symbolic link, which --overwrite does not follow: remove it, or choose another run.name"
        )
    keep = f"{run} is not a run, so --overwrite does not remove it"
    try:
        names = set(os.listdir(run))
    except OSError as error:
        raise TbaError(f"{keep} ({error.strerror}): choose another run.name") from None
    if names <= {LOCK, PARTIAL}:  # what a start leaves that fails at once
        return
    try:
        read_run_config(run)
    except TbaError as error:
        raise TbaError(f"{keep} ({error}): choose another run.name") from None
    if not names & _MARKS:
        raise TbaError(f"{keep} (it has none of {', '.join(sorted(_MARKS))}): choose another run.name")
