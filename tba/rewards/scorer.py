"""The Scorer: batches of requests in, scores out, from reward processes that are replaced when they hang or die.

Scoring overlaps with the caller's work: `submit` returns at once, `collect` waits. Every request is answered; what
went wrong with one is in its scores and never costs another. Requests go to one process in turn, unless the functions
spend their time waiting (for a judge, a sandbox, a network): then more processes are started, each with requests of
its own, so that waiting does not hold up the search. Functions that compute get no more than one.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType

from tba.rewards.functions import RewardFactory, RewardSpec
from tba.rewards.process import LostProcessError, RewardProcess
from tba.rewards.scoring import Failure, FailureKind, ScoreRequest, Scores, all_dropped
from tba.types import TbaError

__all__ = ["Failure", "FailureKind", "ScoreRequest", "Scorer", "Scores"]

_Job = tuple[ScoreRequest, Future[Scores]]
_Batch = list[Future[Scores]]

LONG_WAIT_SECONDS = 0.02
"""A function that waits this long for something, and longer than it computes, is worth another process."""


class Scorer:
    """Owns the reward processes, and a thread for each that feeds it. One thread submits and collects."""

    def __init__(
        self,
        functions: Sequence[RewardSpec],
        weights: Sequence[float],
        timeout_seconds: float,
        max_processes: int = 1,
        start_seconds: float = 120.0,
    ) -> None:
        """`weights` may be empty for 1 each; time limits are for one request, and for a process to be ready."""
        self.functions = tuple(functions)
        self.weights = tuple(weights) or (1.0,) * len(self.functions)
        self.timeout_seconds = timeout_seconds
        self.start_seconds = start_seconds
        # What a factory makes may hold models: one copy is enough.
        self.max_processes = 1 if any(isinstance(spec, RewardFactory) for spec in functions) else max_processes
        if not self.functions:
            raise TbaError("reward.functions is empty: name at least one as module:function")
        if len(self.weights) != len(self.functions) or not all(map(math.isfinite, self.weights)):
            raise TbaError("reward.weights must hold one finite number for each of reward.functions")
        self._names: tuple[str, ...] = ()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._begun: _Worker | None = None
        self._workers: list[_Worker] = []
        self._batches: deque[_Batch] = deque()
        self._growing = threading.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' names for metrics, unique, in the order of `Scores.parts`; empty before `start`."""
        return self._names

    @property
    def num_processes(self) -> int:
        return len(self._workers)

    @property
    def num_in_line(self) -> int:
        """Requests that no process has begun."""
        return self._jobs.qsize()

    def begin(self) -> None:
        """Start the first process and return at once: it imports the functions, and loads what they need, while the
        caller loads something else. `start` is still to be called."""
        self._begun = _Worker(self)
        self._begun.launch()

    def start(self) -> None:
        """Wait until the first process has imported the functions, begun or not; TbaError if it cannot."""
        if self._workers:
            raise RuntimeError("the scorer was started already")
        if self._begun is None:
            self.begin()
        first, self._begun = self._begun, None
        assert first is not None
        try:
            self._names = first.ready_process().wait_until_ready(self.start_seconds)
        except BaseException:
            first.close()
            raise
        self._add(first)

    def submit(self, requests: Sequence[ScoreRequest]) -> None:
        """Queue a batch and return at once."""
        self._batches.append(self._enqueue(requests))

    def ready(self) -> bool:
        """True if `collect` would not wait; False also with no batch submitted."""
        return bool(self._batches) and all(future.done() for future in self._batches[0])

    def collect(self) -> list[Scores]:
        """Wait for the oldest batch not yet collected; one Scores for each of its requests, in order.

        Raises TbaError if a lost process could not be replaced.
        """
        if not self._batches:
            raise RuntimeError("no batch was submitted")
        return [future.result() for future in self._batches.popleft()]

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score a batch and wait for it. Batches submitted before go first, and stay to be collected."""
        return [future.result() for future in self._enqueue(requests)]

    def close(self) -> None:
        """End the processes and drop what was not collected. May be called twice."""
        with self._growing:
            self.max_processes = 0
        if self._begun is not None:
            self._begun.close()
        for worker in self._workers:
            worker.abandon()
        for _ in self._workers:
            self._jobs.put(None)
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Scorer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, requests: Sequence[ScoreRequest]) -> _Batch:
        if not self._workers or self._workers[0].closed:
            raise RuntimeError("the scorer is not running")
        batch: _Batch = [Future() for _ in requests]
        for job in zip(requests, batch, strict=True):
            self._jobs.put(job)
        self.grow()
        return batch

    def grow(self) -> None:
        """Start processes for the requests nobody is at, if those at work are known to wait."""
        with self._growing:
            if all(worker.waits for worker in self._workers):
                for _ in range(min(self._jobs.qsize(), self.max_processes - len(self._workers))):
                    self._add(_Worker(self))

    def _add(self, worker: _Worker) -> None:
        self._workers.append(worker)
        worker.start(self._jobs)


class _Worker:
    """One reward process, replaced when it is lost, and the thread that hands it requests."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self._process: RewardProcess | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._busy = False
        self.closed = False
        self.waits = False
        """The functions spent the latest request waiting rather than computing."""

    def start(self, jobs: SimpleQueue[_Job | None]) -> None:
        # A daemon: should the owner die without `close`, an unfinished batch does not hold up the exit.
        self._thread = threading.Thread(target=self._serve, args=(jobs,), name="tba-scorer", daemon=True)
        self._thread.start()

    def abandon(self) -> None:
        """Nobody will collect: do not wait for user code."""
        with self._lock:
            self.closed = True
            if self._process is not None and self._busy:
                self._process.kill()

    def close(self) -> None:
        with self._lock:
            self.closed = True
        if self._thread is not None:
            self._thread.join()
        if self._process is not None:
            self._process.stop()
            self._process = None

    def _serve(self, jobs: SimpleQueue[_Job | None]) -> None:
        """The thread: waits for a request and scores it, until `close` sends None."""
        while (job := jobs.get()) is not None:
            request, future = job
            try:
                future.set_result(self._score(request))
            except Exception as error:  # whatever it is, `collect` raises it; unanswered, it would wait forever
                future.set_exception(error)
            else:
                self._scorer.grow()

    def _score(self, request: ScoreRequest) -> Scores:
        self._busy = True  # before there is a process, so that `abandon` cannot miss it
        try:
            process = self.ready_process()
            scored = process.score(request, self._scorer.timeout_seconds)
            self.waits = scored.waited > LONG_WAIT_SECONDS and scored.waited > scored.seconds / 2
            return scored.scores
        except LostProcessError as loss:
            self._discard(process)
            failure = Failure(request.prompt_id, loss.function, loss.kind, loss.message)
            return all_dropped(request, len(self._scorer.functions), failure)
        finally:
            self._busy = False

    def launch(self) -> RewardProcess:
        """The running process, or a new one. Under the lock, so that none starts after `abandon` has looked."""
        with self._lock:
            if self.closed:
                raise RuntimeError("the scorer was closed")
            if self._process is None:
                self._process = RewardProcess(self._scorer.functions, self._scorer.weights)
            return self._process

    def ready_process(self) -> RewardProcess:
        """The running process or a new one, once it can take requests."""
        process = self.launch()
        try:
            process.wait_until_ready(self._scorer.start_seconds)
        except TbaError:
            self._discard(process)
            raise
        return process

    def _discard(self, process: RewardProcess) -> None:
        process.kill()
        with self._lock:
            self._process = None
