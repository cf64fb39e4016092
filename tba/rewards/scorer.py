"""The Scorer: batches of requests in, scores out, in a reward process that is replaced when it hangs or dies.

Scoring overlaps with the caller's work: `submit` returns at once, `collect` waits. Every request is answered; what
went wrong with one is in its scores and never costs another.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType

from tba.rewards.functions import RewardSpec
from tba.rewards.process import LostProcessError, RewardProcess
from tba.rewards.scoring import Failure, FailureKind, ScoreRequest, Scores, all_dropped
from tba.types import TbaError

__all__ = ["Failure", "FailureKind", "ScoreRequest", "Scorer", "Scores"]

_Job = tuple[tuple[ScoreRequest, ...], Future[list[Scores]]]


class Scorer:
    """Owns the reward process and a thread that feeds it. One thread submits and collects."""

    def __init__(self, functions: Sequence[RewardSpec], weights: Sequence[float], timeout_seconds: float) -> None:
        """`weights` may be empty for 1 each; the time limit is for one request."""
        self.functions = tuple(functions)
        self.weights = tuple(weights) or (1.0,) * len(self.functions)
        self.timeout_seconds = timeout_seconds
        if not self.functions:
            raise TbaError("reward.functions is empty: name at least one as module:function")
        if len(self.weights) != len(self.functions) or not all(map(math.isfinite, self.weights)):
            raise TbaError("reward.weights must hold one finite number for each of reward.functions")
        self._names: tuple[str, ...] = ()
        self._process: RewardProcess | None = None
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._batches: deque[Future[list[Scores]]] = deque()
        self._newest: Future[list[Scores]] | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def names(self) -> tuple[str, ...]:
        """The functions' names for metrics, unique, in the order of `Scores.parts`; empty before `start`."""
        return self._names

    def start(self) -> None:
        """Start the process and wait until it has imported the functions; TbaError if it cannot."""
        if self._thread is not None:
            raise RuntimeError("the scorer was started already")
        try:
            self._names = self._ready_process().wait_until_ready()
        except BaseException:
            self.close()
            raise
        # A daemon: should the owner die without `close`, an unfinished batch does not hold up the exit.
        self._thread = threading.Thread(target=self._serve, name="tba-scorer", daemon=True)
        self._thread.start()

    def submit(self, requests: Sequence[ScoreRequest]) -> None:
        """Queue a batch and return at once."""
        self._batches.append(self._enqueue(requests))

    def ready(self) -> bool:
        """True if `collect` would not wait; False also with no batch submitted."""
        return bool(self._batches) and self._batches[0].done()

    def collect(self) -> list[Scores]:
        """Wait for the oldest batch not yet collected; one Scores for each of its requests, in order.

        Raises TbaError if a lost process could not be replaced.
        """
        if not self._batches:
            raise RuntimeError("no batch was submitted")
        return self._batches.popleft().result()

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        """Score a batch and wait for it. Batches submitted before go first, and stay to be collected."""
        return self._enqueue(requests).result()

    def close(self) -> None:
        """End the process and drop what was not collected. May be called twice."""
        with self._lock:
            self._closed = True
            if self._process is not None and self._newest is not None and not self._newest.done():
                self._process.kill()  # nobody will collect: do not wait for user code
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
        if self._process is not None:
            self._process.stop()
            self._process = None

    def __enter__(self) -> Scorer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _enqueue(self, requests: Sequence[ScoreRequest]) -> Future[list[Scores]]:
        if self._thread is None or self._closed:
            raise RuntimeError("the scorer is not running")
        self._newest = Future()
        self._jobs.put((tuple(requests), self._newest))
        return self._newest

    def _serve(self) -> None:
        """The thread: waits for a batch, scores its requests in turn, until `close` sends None."""
        while (job := self._jobs.get()) is not None:
            requests, future = job
            try:
                future.set_result([self._score_one(request) for request in requests])
            except Exception as error:  # whatever it is, `collect` raises it; unanswered, it would wait forever
                future.set_exception(error)

    def _score_one(self, request: ScoreRequest) -> Scores:
        process = self._ready_process()
        try:
            return process.score(request, self.timeout_seconds)
        except LostProcessError as loss:
            self._discard(process)
            failure = Failure(request.prompt_id, loss.function, loss.kind, loss.message)
            return all_dropped(request, len(self.functions), failure)

    def _ready_process(self) -> RewardProcess:
        """The running process, or a new one. Under the lock, so that none starts after `close` has looked."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the scorer was closed")
            if self._process is None:
                self._process = RewardProcess(self.functions, self.weights)
            process = self._process
        try:
            process.wait_until_ready()
        except TbaError:
            self._discard(process)
            raise
        return process

    def _discard(self, process: RewardProcess) -> None:
        process.kill()
        with self._lock:
            self._process = None
