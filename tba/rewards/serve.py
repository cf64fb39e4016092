"""The child side of a reward process: user code runs here, so that it can neither hang nor end the Searcher.

Requests carry a number, and so does everything said about them. Coroutines of several requests run together, on one
event loop for the life of the process: an `async` function may keep a client that is bound to its loop. A function that
is not `async` holds the loop while it computes. POSIX only.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pickle import PickleError

from tba.rewards.functions import RewardFunction, RewardSpec, is_async, names_of, resolve, warm_up
from tba.rewards.scoring import Failure, ScoreRequest, Scores, all_dropped, score_group
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
Send = Callable[[Answer], None]


def serve(
    connection: Connection[Answer, Asked],
    functions: Sequence[RewardSpec],
    weights: Sequence[float],
    timeout_seconds: float,
) -> None:
    """Import the functions, say so, then answer requests until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends the child
    _end_with_parent()
    pid = os.getpid()

    def end_if_forked() -> None:
        # A function that forks and lets the copy return here would have two processes answer on one pipe.
        if os.getpid() != pid:
            os._exit(1)

    def send(answer: Answer) -> None:
        end_if_forked()
        connection.send(answer)

    def receive() -> Asked | None:
        end_if_forked()
        try:
            return connection.recv()
        except (EOFError, OSError):
            return None

    try:
        resolved = [resolve(spec) for spec in functions]
    except TbaError as error:
        send(Refused(str(error)))
        return
    named = dict(zip(names_of(resolved), resolved, strict=True))
    warm_up(resolved)
    send(Ready(tuple(named), any(map(is_async, resolved))))

    async def answer(asked: Asked) -> None:
        scores = await _within(timeout_seconds, named, weights, asked, send)
        with contextlib.suppress(OSError):  # the parent has closed the pipe
            try:
                send(Scored(asked.number, scores))
            except (TypeError, ValueError, AttributeError, PickleError) as error:
                failure = Failure(asked.request.prompt_id, "", "raised", f"what was noted cannot be sent: {error}")
                send(Scored(asked.number, all_dropped(asked.request, len(named), failure)))

    try:
        asyncio.run(_answer_until_closed(connection.fileno(), receive, answer))
    finally:
        end_if_forked()


async def _answer_until_closed(
    descriptor: int,
    receive: Callable[[], Asked | None],
    answer: Callable[[Asked], Coroutine[None, None, None]],
) -> None:
    """Start on each request as it arrives, and end when the pipe closes."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    under_way: set[asyncio.Task[None]] = set()  # the loop itself keeps no strong reference to a task

    def on_readable() -> None:
        asked = receive()
        if asked is None:
            loop.remove_reader(descriptor)
            closed.set()
            return
        task = loop.create_task(answer(asked))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    loop.add_reader(descriptor, on_readable)
    await closed.wait()


async def _within(
    seconds: float,
    functions: Mapping[str, RewardFunction],
    weights: Sequence[float],
    asked: Asked,
    send: Send,
) -> Scores:
    """The scores of a request; dropped as a whole if its coroutines take longer. A function that is not `async` cannot
    be interrupted from here: the parent ends the process then."""
    running = ""

    def announce(function: str) -> None:
        nonlocal running
        running = function
        send(Running(asked.number, function))

    request = asked.request
    try:
        async with asyncio.timeout(seconds):
            return await score_group(functions, weights, request, announce)
    except TimeoutError:
        failure = Failure(request.prompt_id, running, "timeout", f"took more than {seconds:g} s")
    except asyncio.CancelledError:
        failure = Failure(request.prompt_id, running, "raised", "CancelledError: the function cancelled itself")
    return all_dropped(request, len(functions), failure)


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
