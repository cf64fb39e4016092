"""The Scorer: requests in, scores out, from reward processes that are replaced when they hang or die.

Scoring overlaps with the caller's work: `submit` returns a ticket at once. Every request is answered; what went wrong
with one is in its scores and never costs another. There are as many processes as were asked for, never
more. A process scores one group at a time, or several if functions are `async`: these wait for each other's judges,
sandboxes and networks together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.util import Finalize
from queue import SimpleQueue
from types import TracebackType

from tba.rewards.functions import RewardSpec
from tba.rewards.process import DiedStartingError, LostProcessError, RewardProcess
from tba.rewards.scoring import Failure, FailureKind, ScoreRequest, Scores, all_dropped
from tba.rewards.serve import Ready
from tba.types import TbaError

__all__ = ["Failure", "FailureKind", "ScoreRequest", "Scorer", "Scores", "Ticket", "Waiting"]

Waiting = Callable[[], AbstractContextManager[None]]
_Job = tuple[ScoreRequest, Future[Scores]]

GROUPS_AT_ONCE = 32
"""Requests under way at a time in a process with `async` functions."""
START_TRIES = 3
"""How often a process is started that dies before it is ready: loading models is when memory runs out for a moment."""


class Ticket:
    """A request that is being scored."""

    def __init__(self, future: Future[Scores], waiting: Waiting = nullcontext) -> None:
        self._future = future
        self._waiting = waiting

    @property
    def ready(self) -> bool:
        """Whether `result` would not wait."""
        return self._future.done()

    def result(self) -> Scores:
        """Wait for the scores. TbaError if a lost process could not be replaced."""
        with self._waiting():
            return self._future.result()


class Scorer:
    """Owns the reward processes, and the threads that feed them."""

    def __init__(
        self,
        functions: Sequence[RewardSpec],
        weights: Sequence[float],
        timeout_seconds: float,
        num_processes: int = 1,
        start_seconds: float = 120.0,
        waiting: Waiting = nullcontext,
        num_steps: int = 0,
        cut_off_score: float | None = None,
    ) -> None:
        """`weights` may be empty for 1 each; time limits are for one request, and for a process to be ready.

        Scores are waited for within a block that `waiting` makes. `num_steps`: of the run, as functions are told.
        `cut_off_score` replaces the reward of a completion that was cut off by the length limit; None: it is scored
        like any other.
        """
        self.functions = tuple(functions)
        self.weights = tuple(weights) or (1.0,) * len(self.functions)
        self.timeout_seconds = timeout_seconds
        self.start_seconds = start_seconds
        self.num_processes = num_processes
        self.waiting = waiting
        self.num_steps = num_steps
        self.cut_off_score = cut_off_score
        if not self.functions:
            raise TbaError("reward.functions is empty: name at least one as module:function")
        if len(self.weights) != len(self.functions) or not all(map(math.isfinite, self.weights)):
            raise TbaError("reward.weights must hold one finite number for each of reward.functions")
        self._ready: Ready | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._threads: list[threading.Thread] = []
        self._at_exit: Finalize | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' names for metrics, unique, in the order of `Scores.parts`; empty before `start`."""
        return self._ready.names if self._ready else ()

    @property
    def overlaps(self) -> bool:
        """Whether some functions are `async`, so that a process scores several groups at once."""
        return self._ready is not None and self._ready.overlaps

    @property
    def num_queued(self) -> int:
        """Requests that no process has begun."""
        return self._jobs.qsize()

    def begin(self) -> None:
        """Start the processes and return at once: they import the functions, and load what these need, while the
        caller loads something else. `start` is still to be called."""
        if self._workers:
            raise RuntimeError("the scorer was started already")
        self._workers = [_Worker(self) for _ in range(self.num_processes)]
        # Before Python ends the processes at its exit: a thread that took one for lost would start another.
        self._at_exit = Finalize(None, _abandon, args=(self._workers,), exitpriority=20)
        for worker in self._workers:
            worker.launch()

    def start(self) -> None:
        """Wait until the processes have imported the functions, begun or not; TbaError if they cannot."""
        if self._threads:
            raise RuntimeError("the scorer was started already")
        if not self._workers:
            self.begin()
        try:
            for worker in self._workers:
                self._ready = worker.ready_process().ready
        except BaseException:
            self.close()
            raise
        for worker in self._workers * (GROUPS_AT_ONCE if self.overlaps else 1):
            # Daemons: should the owner die without `close`, an unfinished batch does not hold up the exit.
            thread = threading.Thread(target=worker.serve, args=(self._jobs,), name="tba-scorer", daemon=True)
            self._threads.append(thread)
            thread.start()

    def submit(self, request: ScoreRequest) -> Ticket:
        """Queue a request and return at once. Requests are begun in order."""
        if not self._threads or self._workers[0].closed:
            raise RuntimeError("the scorer is not running")
        future: Future[Scores] = Future()
        self._jobs.put((request, future))
        return Ticket(future, self.waiting)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score some requests and wait for them."""
        return [ticket.result() for ticket in [self.submit(request) for request in requests]]

    def close(self) -> None:
        """End the processes and drop what was not scored. May be called twice."""
        _abandon(self._workers)
        if self._at_exit is not None:
            self._at_exit.cancel()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Scorer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _abandon(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.abandon()


class _Worker:
    """One reward process, replaced when it is lost. Several threads may have it score at the same time."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._process: RewardProcess | None = None
        self._lock = threading.Lock()
        self._door = _Door()
        self._num_busy = 0
        self.closed = False

    def serve(self, jobs: SimpleQueue[_Job | None]) -> None:
        """A thread: waits for a request and scores it, until `close` sends None."""
        while (job := jobs.get()) is not None:
            request, future = job
            try:
                scores, instead = self._score(request), self._scorer.cut_off_score
                future.set_result(scores if instead is None else scores.with_cut_off_score(request.finished, instead))
            except Exception as error:  # whatever it is, the ticket raises it; unanswered, it would wait forever
                future.set_exception(error)

    def launch(self) -> RewardProcess:
        """The running process, or a new one. Under the lock, so that none starts after `abandon` has looked."""
        with self._lock:
            if self.closed:
                raise RuntimeError("the scorer was closed")
            if self._process is None or self._process.is_lost:
                scorer = self._scorer
                self._process = RewardProcess(
                    scorer.functions, scorer.weights, scorer.timeout_seconds, scorer.num_steps
                )
            return self._process

    def ready_process(self) -> RewardProcess:
        """The process, once it can take requests. One that dies before that is started again, a few times."""
        for tries_left in reversed(range(START_TRIES)):
            process = self.launch()
            try:
                process.wait_until_ready(self._scorer.start_seconds)
                return process
            except DiedStartingError as error:
                process.kill()
                if not tries_left:
                    raise TbaError(str(error)) from None
            except TbaError:
                process.kill()
                raise
        raise AssertionError("not reached")

    def abandon(self) -> None:
        """Nobody will ask for scores: do not wait for user code."""
        with self._lock:
            self.closed = True
            if self._process is not None and self._num_busy:
                self._process.kill()

    def close(self) -> None:
        with self._lock:
            self.closed = True
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _score(self, request: ScoreRequest) -> Scores:
        try:
            return self._ask(request, alone=False)
        except LostProcessError as loss:
            if loss.alone:
                return self._dropped(request, loss)
        # Others were under way, so nobody knows which request it was: alone, each shows by itself.
        try:
            return self._ask(request, alone=True)
        except LostProcessError as loss:
            return self._dropped(request, loss)

    def _ask(self, request: ScoreRequest, *, alone: bool) -> Scores:
        with self._door.entered(alone=alone), self._busy():
            return self.ready_process().score(request)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._lock:  # before there is a process, so that `abandon` cannot miss it
            self._num_busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_busy -= 1

    def _dropped(self, request: ScoreRequest, loss: LostProcessError) -> Scores:
        failure = Failure(request.prompt_id, loss.function, loss.kind, loss.message)
        return all_dropped(request, len(self._scorer.functions), failure)


class _Door:
    """Many may be inside at once, or one alone, who goes before those that come later."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_inside = 0
        self._num_for_alone = 0
        """Who wants to be inside alone, or is."""

    @contextmanager
    def entered(self, *, alone: bool) -> Iterator[None]:
        with self._changed:
            self._num_for_alone += alone
            self._changed.wait_for(lambda: not self._num_inside if alone else not self._num_for_alone)
            self._num_inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_inside -= 1
                self._num_for_alone -= alone
                self._changed.notify_all()
