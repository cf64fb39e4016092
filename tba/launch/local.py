"""One machine: a process for the Trainer and one for each Searcher, watched by this one.

A Searcher that dies is started again and takes the newest weights; a Trainer that dies ends the run with its error.
Ctrl-C lets the Trainer write a checkpoint. This process imports no torch: it only places, connects and watches.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from tba.activity import FOLDER, read_activities
from tba.checkpoint import Checkpoint
from tba.config import Config
from tba.launch.meeting import meeting_folder, published_bytes
from tba.launch.processes import (
    USER_ERROR,
    Place,
    error_file,
    num_cores,
    on_interrupt,
    parent_alive,
    run_process,
    thread_environment,
)
from tba.metrics import Metrics
from tba.types import TbaError

_TICK_SECONDS = 0.25
_GRACE_SECONDS = 20.0
_LESS_FOR_THE_TRAINER = "lower trainer.micro_batch_tokens or set model.gradient_checkpointing"
_LESS_FOR_A_SEARCHER = "lower searcher.prompts_per_batch or searcher.num_searchers"
_spawn = multiprocessing.get_context("spawn")


def run_local(config: Config, run: Path, checkpoint: Checkpoint | None, tick: Callable[[], None]) -> bool:
    """Run to the end, or until interrupted. True if it reached the last step. `tick` is called a few times a second."""
    # Adapters are small; what they take is not looked up.
    num_bytes = 0 if config.model.lora_rank else published_bytes(Path(config.model.path))
    with meeting_folder(num_bytes) as meeting:
        return LocalRun(config, run, checkpoint, meeting).watch(tick)


class LocalRun:
    """The processes of one run."""

    def __init__(self, config: Config, run: Path, checkpoint: Checkpoint | None, meeting: Path) -> None:
        self._config = config
        self._run = run
        self._checkpoint = checkpoint
        self._meeting = meeting
        self._key = secrets.token_bytes(32)
        self._started = time.time()
        self._trainer: SpawnProcess | None = None
        self._searchers: dict[int, SpawnProcess] = {}
        self._num_restarts = 0
        self._num_interrupts = 0
        self._failure: TbaError | None = None

    def watch(self, tick: Callable[[], None]) -> bool:
        """Start everything, wait for the Trainer to end, and keep Searchers running until then."""
        with on_interrupt(self._interrupt):
            try:
                self._trainer = self._start("trainer", trainer_main)
                for index in range(self._config.searcher.num_searchers):
                    self._start_searcher(index)
                while self._trainer.is_alive():
                    wait([p.sentinel for p in (self._trainer, *self._searchers.values())], _TICK_SECONDS)
                    self._look_after_searchers()
                    tick()
                self._end_searchers()
                tick()
            finally:
                self._kill_all()
        return self._outcome()

    def _start(self, name: str, target: Callable[..., None], *arguments: int) -> SpawnProcess:
        error_file(self._run, name).unlink(missing_ok=True)
        num_threads = self._threads(name)
        checkpoint = self._checkpoint.path if self._checkpoint else None
        place = Place(self._config, self._run, self._meeting, self._key, num_threads, checkpoint, self._started)
        process = _spawn.Process(target=target, args=(place, *arguments), name=name)
        with _environment(thread_environment(num_threads)):
            process.start()
        return process

    def _start_searcher(self, index: int) -> None:
        incarnation = _next_incarnation(self._run, index)
        self._searchers[index] = self._start(f"searcher-{index}", searcher_main, index, incarnation)

    def _threads(self, name: str) -> int:
        """Cores shared out over the processes that work at the same time. Those that take turns get all of them."""
        if self._config.run.num_threads:
            return self._config.run.num_threads
        num_searchers = self._config.searcher.num_searchers
        if self._config.trainer.synchronous:
            return num_cores() if name == "trainer" else max(1, num_cores() // num_searchers)
        return max(1, num_cores() // (1 + num_searchers))

    def _look_after_searchers(self) -> None:
        for index, process in list(self._searchers.items()):
            if process.is_alive():
                continue
            del self._searchers[index]
            if process.exitcode == 0 or self._num_interrupts or self._failure:
                continue
            how = _exit_reason(process, _LESS_FOR_A_SEARCHER)
            if process.exitcode == USER_ERROR:
                self._give_up(TbaError(_error(self._run, f"searcher-{index}")))
            elif self._num_restarts >= self._config.run.max_restarts:
                self._give_up(
                    TbaError(
                        f"Searchers died more than run.max_restarts = {self._config.run.max_restarts} times; the last "
                        f"one: {_last_line(_error(self._run, f'searcher-{index}')) or how}"
                    )
                )
            else:
                self._num_restarts += 1
                self._event(event="searcher_restarted", searcher=index, why=how)
                self._start_searcher(index)

    def _give_up(self, failure: TbaError) -> None:
        """Let the Trainer save what it has, then tell."""
        self._failure = failure
        self._stop_trainer()

    def _stop_trainer(self) -> None:
        if self._trainer is not None and self._trainer.is_alive() and self._trainer.pid:
            os.kill(self._trainer.pid, signal.SIGTERM)

    def _event(self, **values: Any) -> None:
        metrics = Metrics(self._run, elapsed=time.time() - self._started)
        steps = [activity.get("step", 0) for activity in read_activities(self._run)]
        metrics.write("event", max(steps, default=0), values)
        metrics.close()

    def _end_searchers(self) -> None:
        """They end by themselves once the Trainer has closed the weights, after the batch they are at."""
        assert self._trainer is not None
        if self._trainer.exitcode == 0 and not self._num_interrupts:
            for process in self._searchers.values():
                process.join(_GRACE_SECONDS)

    def _kill_all(self) -> None:
        for process in (self._trainer, *self._searchers.values()):
            if process is not None and process.is_alive():
                process.kill()
                process.join()

    def _outcome(self) -> bool:
        if self._failure is not None:
            raise self._failure
        assert self._trainer is not None
        if self._trainer.exitcode == 0:
            return self._num_interrupts == 0
        if self._num_interrupts:
            return False
        message = _error(self._run, "trainer")
        if self._trainer.exitcode == USER_ERROR:
            raise TbaError(message)
        how = _exit_reason(self._trainer, _LESS_FOR_THE_TRAINER)
        raise TrainerDiedError(f"the Trainer died: it {how}; resume with: tba train --resume {self._run}", message)

    def _interrupt(self, number: int, frame: Any) -> None:
        """The first Ctrl-C (or SIGTERM) stops in order, the second at once."""
        self._num_interrupts += 1
        if self._num_interrupts == 1:
            self._stop_trainer()
        else:
            self._kill_all()


class TrainerDiedError(Exception):
    """The Trainer's process ended with an error that is not the user's. Keeps its traceback, if it left one."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


def trainer_main(place: Place) -> None:
    def body() -> None:
        from tba.build import build_trainer
        from tba.channels.shared_memory import SharedWeightPublisher
        from tba.channels.socket import SocketGroupReceiver

        trainer = build_trainer(
            place.config,
            place.run,
            weights=SharedWeightPublisher(place.meeting),
            groups=SocketGroupReceiver(place.meeting, place.key),
            checkpoint=Checkpoint(place.checkpoint) if place.checkpoint else None,
            started=place.started,
        )

        def stop(number: int, frame: Any) -> None:
            trainer.stop_requested = True

        signal.signal(signal.SIGTERM, stop)
        trainer.run()

    run_process("trainer", place, body)


def searcher_main(place: Place, index: int, incarnation: int) -> None:
    def body() -> None:
        from tba.build import build_searcher
        from tba.channels.shared_memory import SharedWeightSubscriber
        from tba.channels.socket import SocketGroupSender

        sender = SocketGroupSender(place.meeting, place.key, parent_alive)
        searcher = build_searcher(
            place.config,
            place.run,
            index,
            incarnation,
            weights=SharedWeightSubscriber(place.meeting, parent_alive),
            groups=sender,
        )
        searcher.run()
        searcher.scorer.close()
        sender.close()

    run_process(f"searcher-{index}", place, body)


def _next_incarnation(run: Path, index: int) -> int:
    """How often this Searcher was started before, over all resumes: no two starts share samples or group names."""
    path = run / FOLDER / f"searcher-{index}.starts"
    path.parent.mkdir(parents=True, exist_ok=True)
    count = int(json.loads(path.read_text("utf-8"))) if path.exists() else 0
    path.write_text(json.dumps(count + 1), "utf-8")
    return count


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _error(run: Path, name: str) -> str:
    path = error_file(run, name)
    return path.read_text("utf-8") if path.exists() else ""


def _exit_reason(process: SpawnProcess, less_memory: str) -> str:
    """How a process ended; `less_memory` is what to do if it took too much."""
    code = process.exitcode or 0
    if code >= 0:
        return f"ended with exit code {code}"
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    # The kernel kills so when memory runs out, and so does nearly nobody else.
    return f"{how}, probably out of memory: {less_memory}" if -code == signal.SIGKILL else how


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
