"""What every process of a local run does first and last: threads, output, signals, errors, its parent's death."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.launch.supervise import Outcome
from tba.rewards.given import GivenReward, take
from tba.runs.activity import PROCESSES, Activity
from tba.types import TbaError

EXIT_CODES = {Outcome.FINISHED: 0, Outcome.DIED: 1, Outcome.USER_ERROR: 64, Outcome.STOPPED: 65}
"""By which a process tells how it ended."""


@dataclass(frozen=True)
class ProcessArguments:
    """What a process of a run is given: settings, the run's folder, and the meeting point of the processes."""

    config: Config
    run: Path
    meeting: Path
    """Private folder that holds the socket and the shared weights."""
    key: bytes
    num_threads: int
    checkpoint: Path | None
    started: float
    """When the launcher was started, by the clock: a run's time counts from there."""
    environment: Mapping[str, str]
    """The launcher's environment variables: a server that forks may have others."""
    given_rewards: tuple[GivenReward, ...] = ()
    """Reward functions that cannot be imported."""


def run_process(name: str, given: ProcessArguments, body: Callable[[Activity], Outcome]) -> None:
    """Run the body of a child process; how it failed is left in a file for the launcher to tell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher alone decides what Ctrl-C means
    os.environ.clear()
    os.environ.update({**given.environment, **thread_environment(given.num_threads)})
    take(given.given_rewards)
    die_with_parent()
    redirect_output(given.run / "logs" / f"{name}.log")
    outcome = Outcome.DIED
    try:
        outcome = body(Activity(given.run, name))
    except TbaError as error:
        error_file(given.run, name).write_text(str(error), "utf-8")
        outcome = Outcome.USER_ERROR
    except BaseException:
        error_file(given.run, name).write_text(traceback.format_exc(), "utf-8")
        traceback.print_exc()
    finally:
        _exit(EXIT_CODES[outcome])


def import_torch(num_threads: int) -> None:
    import torch

    torch.set_num_threads(num_threads)


def use_threads(num_threads: int) -> None:
    """Load torch into this process, with so many compute threads; 0: one for each core."""
    count = num_threads or num_cores()
    os.environ.update(thread_environment(count))  # before torch is imported, which reads it once
    import_torch(count)


def error_file(run: Path, name: str) -> Path:
    return run / PROCESSES / f"{name}.error"


def die_with_parent() -> None:
    """End this process when its parent is gone, however it went: nobody is left to watch or stop it."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def parent_alive() -> bool:
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


@contextmanager
def on_interrupt(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Call `handler` on Ctrl-C and SIGTERM, until the end of the block. Only the main thread can have handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before if before is not None else signal.SIG_DFL)


@contextmanager
def stopped_at_once(stopping: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block with a KeyboardInterrupt, after a call of `stopping`.

    Where they break into an import or into the talk with another process, Python may report something else: it was
    the interrupt all the same.
    """
    interrupted = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        stopping()
        raise KeyboardInterrupt

    with on_interrupt(interrupt):
        try:
            yield
        except Exception:
            if interrupted:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def importable_main() -> Iterator[None]:
    """Hide from child processes a main script that is no file, as of `python -`: they would look for it and die."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or Path(file).is_file():
        yield
        return
    del main.__file__
    try:
        yield
    finally:
        main.__file__ = file


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def thread_environment(num_threads: int) -> dict[str, str]:
    """Read by OpenMP and MKL when torch is imported, so it must be set before a process starts."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {name: str(num_threads) for name in names} | {"TOKENIZERS_PARALLELISM": "false"}


def redirect_output(path: Path) -> None:
    """What libraries print goes to the process's log, not across the live display."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    os.close(descriptor)


def _exit(code: int) -> None:
    """Leave without waiting for daemon threads that may be in the middle of a read."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
