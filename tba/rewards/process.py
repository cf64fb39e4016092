"""The reward process: user code runs in a child that can be killed, so that it can neither hang nor end the parent.

`serve` is the child; `RewardProcess` is the parent's handle on one. One request is under way at a time, so a process
that is lost names the group it was lost on. When to start another is the Scorer's business. POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from tba.rewards.functions import RewardFactory, RewardSpec, names_of, resolve, warm_up
from tba.rewards.scoring import FailureKind, ScoreRequest, Scores, score_group
from tba.types import TbaError

STOP_SECONDS = 1.0
"""An idle child gets this long to end by itself."""


@dataclass(frozen=True, slots=True)
class Ready:
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    message: str


@dataclass(frozen=True, slots=True)
class Running:
    name: str


@dataclass(frozen=True, slots=True)
class Scored:
    scores: Scores
    seconds: float
    waited: float
    """Seconds of it that the functions spent waiting for something other than a core."""


class LostProcessError(Exception):
    """The process hung or died on a request and is of no more use."""

    def __init__(self, kind: FailureKind, function: str, message: str) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.function = function
        self.message = message


class RewardProcess:
    """A child that has the reward functions. Used by one thread; only `kill` may be called from another."""

    def __init__(self, functions: Sequence[RewardSpec], weights: Sequence[float]) -> None:
        """Start the child and return at once."""
        self._functions = functions
        # A server that has imported this package once and forks: a new process costs milliseconds, not imports.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tba.rewards.process", "tba.rewards.answer"])
        self._connection, childs_end = context.Pipe()
        # Not a daemon: reward functions may start processes of their own.
        self._process = context.Process(
            target=serve, args=(childs_end, tuple(functions), tuple(weights)), name="tba-reward", daemon=False
        )
        try:
            self._process.start()
        finally:
            childs_end.close()
        # Python joins such children when it exits, forever; this ends the child first, and also if the handle is lost.
        self._end = Finalize(self, _end_process, args=(self._process,), exitpriority=10)
        self._names: tuple[str, ...] | None = None

    def wait_until_ready(self, timeout_seconds: float) -> tuple[str, ...]:
        """The functions' names for metrics, once all are imported; TbaError if that fails or takes longer."""
        if self._names is None:
            self._names = self._first_message(timeout_seconds)
        return self._names

    def score(self, request: ScoreRequest, timeout_seconds: float) -> Scored:
        """Score one group; raises LostProcessError if the time is over or the child is gone."""
        deadline = time.monotonic() + timeout_seconds
        running = ""
        try:
            self._connection.send(request)
            while True:
                message = self._receive(deadline)
                if isinstance(message, Scored):
                    return message
                running = message.name
        except TimeoutError:
            if self._process.exitcode is not None:  # a process it forked may hold the pipe open
                raise LostProcessError("died", running, self._how_it_ended()) from None
            raise LostProcessError("timeout", running, f"took more than {timeout_seconds:g} s") from None
        except (EOFError, OSError):
            raise LostProcessError("died", running, self._how_it_ended()) from None

    def kill(self) -> None:
        """End the child and the processes it started, whatever they do."""
        self._end()

    def stop(self) -> None:
        """End an idle child, letting it run its exit handlers."""
        self._connection.close()
        self._process.join(STOP_SECONDS)
        self._end()

    def _first_message(self, timeout_seconds: float) -> tuple[str, ...]:
        names = ", ".join(spec.path if isinstance(spec, RewardFactory) else spec for spec in self._functions)
        try:
            message = self._receive(time.monotonic() + timeout_seconds)
        except TimeoutError:
            raise TbaError(
                f"the reward process was not ready after {timeout_seconds:g} s: make importing {names} quicker, or "
                "raise reward.start_seconds"
            ) from None
        except (EOFError, OSError):
            raise TbaError(
                f"the reward process {self._how_it_ended()} while importing {names}: its output above says why "
                "(a script that starts a run needs `if __name__ == '__main__':`)"
            ) from None
        if isinstance(message, Refused):
            raise TbaError(message.message)
        assert isinstance(message, Ready)
        return message.names

    def _receive(self, deadline: float) -> Any:
        if not self._connection.poll(max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        return self._connection.recv()

    def _how_it_ended(self) -> str:
        self._process.join(STOP_SECONDS)  # the pipe closes a moment before the process is gone
        code = self._process.exitcode
        if code is None:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _end_process(process: ForkServerProcess) -> None:
    process.kill()
    # The child leads a process group: what user code started in it goes too.
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join(STOP_SECONDS)


def serve(connection: Connection, functions: Sequence[RewardSpec], weights: Sequence[float]) -> None:
    """The child: import, report, then answer requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the child
    _end_with_parent()
    try:
        resolved = [resolve(spec) for spec in functions]
    except TbaError as error:
        connection.send(Refused(str(error)))
        return
    named = dict(zip(names_of(resolved), resolved, strict=True))
    warm_up(resolved)
    connection.send(Ready(tuple(named)))
    # One event loop for life: an async function may keep a client that is bound to its loop.
    with asyncio.Runner() as runner:
        while True:
            try:
                request = connection.recv()
            except (EOFError, OSError):
                return
            started, busy = time.monotonic(), _busy_seconds()
            scores = score_group(named, weights, request, runner.run, lambda name: connection.send(Running(name)))
            seconds = time.monotonic() - started
            connection.send(Scored(scores, seconds, seconds - (_busy_seconds() - busy)))


def _busy_seconds() -> float:
    """Time this process has computed or, where the system tells, stood in line for a core: a loaded machine is no
    reason to start more processes."""
    try:
        in_line = int(Path("/proc/self/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        in_line = 0.0
    return time.process_time() + in_line


def _end_with_parent() -> None:
    """See to it that the child's process group dies with the parent, even if user code never yields.

    A thread alone cannot promise that: a regular expression or a large power hangs with the interpreter lock held.
    On Linux the kernel itself signals the closing of the pipe the parent holds; the thread serves other systems.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    os.setpgid(0, 0)
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    with contextlib.suppress(OSError):  # not every system signals pipes
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        parent.join()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="tba-parent-watch", daemon=True).start()
