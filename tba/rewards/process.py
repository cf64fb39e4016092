"""The parent's handle on a reward process: numbered requests out, scores in, and an end to it when it hangs or dies.

A request that is alone in its process names the group that the process was lost on. When several are under way, nobody
knows which of them did it. When to start another process, and what to ask again, is the Scorer's business.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from tba.rewards.functions import RewardSpec, shipped
from tba.rewards.scoring import FailureKind, ScoreRequest, Scores
from tba.rewards.serve import Answer, Asked, Ready, Refused, Running, Scored, serve
from tba.types import TbaError

STOP_SECONDS = 1.0
"""An idle child gets this long to end by itself."""
GRACE_SECONDS = 5.0
"""Coroutines are ended in time by the child itself, which says so; later than this it must be stuck."""


class LostProcessError(Exception):
    """The process hung or died and is of no more use."""

    def __init__(self, kind: FailureKind, function: str, message: str, *, alone: bool) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.function = function
        self.message = message
        self.alone = alone
        """No other request was under way: this one is what the process was lost on."""


class DiedStartingError(Exception):
    """The process was gone before it was ready, by a signal or an exit: another may fare better."""


@dataclass
class _UnderWay:
    scores: Future[Scores] = field(default_factory=Future)
    running: str = ""


class RewardProcess:
    """A child that has the reward functions. Any thread may use it once it is ready."""

    def __init__(
        self,
        functions: Sequence[RewardSpec],
        weights: Sequence[float],
        timeout_seconds: float,
        num_steps: int = 0,
        *,
        forked: bool = True,
    ) -> None:
        """Start the child and return at once. `num_steps`: of the run, as functions are told.

        `forked`: by a server that has imported this package once, so that a new process costs milliseconds, not
        imports. A process has one such server, for all that it starts.
        """
        self._functions = tuple(map(shipped, functions))
        self._timeout_seconds = timeout_seconds
        context = multiprocessing.get_context("forkserver") if forked else multiprocessing.get_context("spawn")
        if forked:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["tba.rewards.serve", "tba.rewards.answer"])
        self._connection: Connection[Asked, Answer]
        self._connection, childs_end = context.Pipe()
        _limit_sending(self._connection, timeout_seconds)
        # Not a daemon: reward functions may start processes of their own.
        self._process = context.Process(
            target=serve,
            args=(childs_end, self._functions, tuple(weights), timeout_seconds, num_steps),
            name="tba-reward",
            daemon=False,
        )
        try:
            with without_ctrl_c():
                self._process.start()
        finally:
            childs_end.close()
        # Python joins such children when it exits, forever; this ends the child first, and also if the handle is lost.
        self._end = Finalize(self, _end_process, args=(self._process,), exitpriority=10)
        self._ready: Ready | None = None
        self._starting = threading.Lock()
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._under_way: dict[int, _UnderWay] = {}
        self._next_number = 0
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    @property
    def ready(self) -> Ready:
        """What the child said when it was ready."""
        assert self._ready is not None
        return self._ready

    def wait_until_ready(self, timeout_seconds: float) -> None:
        """Until all functions are imported. TbaError if that cannot be, or takes longer; DiedStartingError if the
        process is gone."""
        with self._starting:
            if self._ready is None:
                self._ready = self._first_message(timeout_seconds)
                threading.Thread(target=self._read_answers, name="tba-reward-answers", daemon=True).start()

    def score(self, request: ScoreRequest) -> Scores:
        """Score one group; raises LostProcessError if the time is over or the child is gone."""
        deadline = time.monotonic() + self._timeout_seconds + (GRACE_SECONDS if self.ready.overlaps else 0.0)
        number, under_way = self._register()
        try:
            with self._sending:
                self._connection.send(Asked(number, request))
        except BlockingIOError:
            self._lose("timeout")
        except OSError:
            pass  # the thread that reads finds the pipe closed and says how the process ended
        try:
            return under_way.scores.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            self._lose("timeout")
            return under_way.scores.result()

    def kill(self) -> None:
        """End the child and the processes it started, whatever they do. Requests under way are lost."""
        self._lose("died", "was ended")  # nobody waits to see how

    def stop(self) -> None:
        """End an idle child, letting it run its exit handlers."""
        if self._give_up() is not None:
            _shut(self._connection)
            self._process.join(STOP_SECONDS)
            self._end()

    def _register(self) -> tuple[int, _UnderWay]:
        with self._lock:
            if self._is_lost:
                # Not alone: it has not reached the process, so it cannot be what ended it.
                raise LostProcessError("died", "", "was lost before this request", alone=False)
            self._next_number += 1
            under_way = self._under_way[self._next_number] = _UnderWay()
            return self._next_number, under_way

    def _read_answers(self) -> None:
        """The reading thread: hands each answer to the request with its number, until the pipe closes."""
        try:
            while True:
                message = self._connection.recv()
                if not isinstance(message, Running | Scored) or message.number not in self._under_way:
                    self._lose("died", "answered something that was not asked")
                elif isinstance(message, Running):
                    self._under_way[message.number].running = message.function
                else:
                    with self._lock:
                        answered = self._under_way.pop(message.number, None)
                    if answered is not None:
                        answered.scores.set_result(message.scores)
        except Exception:  # closed, killed within a message, or what came is no message
            self._lose("died")

    def _lose(self, kind: FailureKind, message: str = "") -> None:
        """End the process, and tell all whose requests are under way. Only the first reason counts."""
        lost = self._give_up()
        if lost is None:
            return
        # A process that hangs may also have died, with its pipe held open by a process that it forked.
        if kind == "timeout" and self._process.exitcode is None:
            message = f"took more than {self._timeout_seconds:g} s"
        else:
            kind, message = "died", message or self._how_it_ended()
        self._end()
        _shut(self._connection)  # wakes whoever is sending or reading
        for one in lost:
            one.scores.set_exception(LostProcessError(kind, one.running, message, alone=len(lost) == 1))

    def _give_up(self) -> list[_UnderWay] | None:
        """Take no more requests; what was under way. None for all but the first caller, who alone may ask how the
        process ended: two threads at once would spoil each other's answer."""
        with self._lock:
            if self._is_lost:
                return None
            self._is_lost = True
            lost, self._under_way = list(self._under_way.values()), {}
            return lost

    def _first_message(self, timeout_seconds: float) -> Ready:
        names = ", ".join(spec if isinstance(spec, str) else spec.path for spec in self._functions)
        try:
            if not self._connection.poll(timeout_seconds):
                raise TbaError(
                    f"the reward process was not ready after {timeout_seconds:g} s: make importing {names} quicker, or "
                    "raise reward.start_seconds"
                )
            message = self._connection.recv()
        except (EOFError, OSError):
            raise DiedStartingError(
                f"the reward process {self._how_it_ended()} while importing {names}: its output above says why "
                "(a script that starts a run needs `if __name__ == '__main__':`)"
            ) from None
        if isinstance(message, Refused):
            raise TbaError(message.message)
        assert isinstance(message, Ready)
        return message

    def _how_it_ended(self) -> str:
        self._process.join(STOP_SECONDS)  # the pipe closes a moment before the process is gone
        code = self._process.exitcode
        if code is None:
            return "closed its pipe"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@contextlib.contextmanager
def without_ctrl_c() -> Iterator[None]:
    """For the moment that it takes to start a process, which never hears of Ctrl-C: the terminal sends it to all, and a
    Python that is still starting would answer with a traceback. A signal that comes in this moment waits for its end.
    """
    resource_tracker.ensure_running()  # when it starts its own process, multiprocessing lifts the block again
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # which the process inherits
    try:
        with _later(signal.SIGINT), _later(signal.SIGTERM):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def _later(number: signal.Signals) -> Iterator[None]:
    """The handler of a signal runs after the block. Only the main thread can see to that, and has any handlers."""
    if threading.current_thread() is not threading.main_thread() or not callable(signal.getsignal(number)):
        yield
        return
    came: list[Any] = []
    before: Any = signal.signal(number, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(number, before)
        if came:
            before(*came[0])


def _limit_sending(connection: Connection[Asked, Answer], seconds: float) -> None:
    """A child that does not read must not hold up the parent: the kernel gives up on sending after a while."""
    whole = int(seconds)
    limit = struct.pack("ll", whole, int((seconds - whole) * 1e6))
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _shut(connection: Connection[Asked, Answer]) -> None:
    """Close the pipe for good, also under threads that are blocked in it; its descriptor goes with the handle."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.shutdown(socket.SHUT_RDWR)


def _end_process(process: BaseProcess) -> None:
    process.kill()
    # The child leads a process group: what user code started in it goes too.
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join(STOP_SECONDS)
