"""The child side of a reward process: user code runs here, so that it can neither hang nor end the Searcher.

Requests carry a number, and so does everything said about them. Functions are called in the main thread, one request
after the other. What `async` functions return is awaited in a second thread, where coroutines of several requests run
together on one event loop for the life of the process: such a function may keep a client that is bound to its loop.
POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import selectors
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pickle import PickleError

from tba.rewards.functions import RewardFunction, RewardSpec, is_async, names_of, resolve, warm_up
from tba.rewards.scoring import Failure, GroupScoring, ScoreRequest, Scores
from tba.types import TbaError


@dataclass(frozen=True, slots=True)
class Ready:
    names: tuple[str, ...]
    """The functions' names for metrics."""
    overlaps: bool
    """Whether some functions are `async`, so that several requests may be under way at once."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The functions cannot be imported, and trying again would not help."""

    message: str


@dataclass(frozen=True, slots=True)
class Asked:
    number: int
    request: ScoreRequest


@dataclass(frozen=True, slots=True)
class Running:
    """A function begins on a request."""

    number: int
    function: str


@dataclass(frozen=True, slots=True)
class Scored:
    number: int
    scores: Scores


Answer = Ready | Refused | Running | Scored


def serve(
    connection: Connection[Answer, Asked],
    functions: Sequence[RewardSpec],
    weights: Sequence[float],
    timeout_seconds: float,
    num_steps: int = 0,
) -> None:
    """Import the functions, say so, then answer requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the child
    _end_with_parent()
    pipe = _Pipe(connection)
    try:
        resolved = [resolve(spec) for spec in functions]
    except TbaError as error:
        pipe.send(Refused(str(error)))
        return
    named = dict(zip(names_of(resolved), resolved, strict=True))
    warm_up(resolved)
    pipe.send(Ready(tuple(named), any(map(is_async, resolved))))
    try:
        _answer_all(pipe, named, weights, timeout_seconds, num_steps)
    finally:
        pipe.end_if_forked()


def _answer_all(
    pipe: _Pipe,
    functions: Mapping[str, RewardFunction],
    weights: Sequence[float],
    timeout_seconds: float,
    num_steps: int,
) -> None:
    loop = None

    async def finish(number: int, scoring: GroupScoring, prompt_id: str) -> None:
        await scoring.finish(timeout_seconds)
        pipe.answer(number, scoring.scores(), prompt_id)

    while (asked := pipe.receive()) is not None:
        number, request = asked.number, asked.request
        scoring = GroupScoring(functions, weights, request, num_steps)
        scoring.begin(partial(pipe.announce, number))
        if scoring.is_waiting:
            loop = loop or _start_loop(pipe)
            asyncio.run_coroutine_threadsafe(finish(number, scoring, request.prompt_id), loop)
        else:
            pipe.answer(number, scoring.scores(), request.prompt_id)


def _start_loop(pipe: _Pipe) -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own. What would end a program, such as `sys.exit`, ends the process."""
    loop = asyncio.SelectorEventLoop(_Selector(pipe))

    def run() -> None:
        try:
            loop.run_forever()
        except SystemExit as error:
            os._exit(error.code if isinstance(error.code, int) else 1)

    threading.Thread(target=run, name="tba-reward-loop", daemon=True).start()
    return loop


class _Selector(selectors.DefaultSelector):
    """What the loop waits with. A copy of the process shares it, and would take events that are meant for the loop."""

    def __init__(self, pipe: _Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._pipe.end_if_forked()
        return super().select(timeout)


class _Pipe:
    """The child's end. Both of its threads may send.

    A function that forks, and lets the copy return to us, would have two processes answer on one pipe: the copy ends
    as soon as it would speak or listen.
    """

    def __init__(self, connection: Connection[Answer, Asked]) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._sending = threading.Lock()

    def end_if_forked(self) -> None:
        if os.getpid() != self._pid:
            os._exit(1)

    def receive(self) -> Asked | None:
        """The next request; None once the parent has closed the pipe."""
        self.end_if_forked()
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return None

    def send(self, answer: Answer) -> None:
        self.end_if_forked()
        with self._sending:
            self._connection.send(answer)

    def announce(self, number: int, function: str) -> None:
        self.send(Running(number, function))

    def answer(self, number: int, scores: Scores, prompt_id: str) -> None:
        with contextlib.suppress(OSError):  # the parent has closed the pipe
            try:
                self.send(Scored(number, scores))
            except (TypeError, ValueError, AttributeError, PickleError) as error:
                failure = Failure(prompt_id, "", "raised", f"what was noted cannot be sent: {error}")
                self.send(Scored(number, Scores((None,) * len(scores.rewards), scores.parts, (failure,))))


def _end_with_parent() -> None:
    """See to it that the child's process group dies with the parent, even if user code never yields.

    A thread alone cannot promise that: a regular expression or a large power hangs with the interpreter lock held.
    On Linux the kernel itself signals the closing of the pipe the parent holds; the thread serves other systems.
    `prctl(PR_SET_PDEATHSIG)` would watch the fork server instead of the parent, and spare the process group.
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
