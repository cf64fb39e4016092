"""One machine: a process for the Trainer and one for each Searcher, watched by this one.

This process imports no torch: it only places, connects and watches.
"""

from __future__ import annotations

import math
import os
import secrets
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.launch.meeting import meeting_folder, published_bytes
from tba.launch.memory import total_memory
from tba.launch.nursery import start_process, start_server
from tba.launch.processes import (
    EXIT_CODES,
    ProcessArguments,
    error_file,
    import_torch,
    num_cores,
    on_interrupt,
    parent_alive,
    run_process,
)
from tba.launch.shown import IMPORTING, Shown, preparing
from tba.launch.supervise import Exit, Outcome, Supervisor
from tba.learn.checkpoint import Checkpoint
from tba.rewards.given import given_for
from tba.runs.activity import PREPARING, STARTING, TRAINER, Activity, read_activities
from tba.runs.metrics import resident_megabytes
from tba.types import SearcherName

_KILL_SECONDS = 10.0  # a process within a system call that never returns does not even die


def run_local(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    wants_to_stop: Callable[[], bool] = lambda: False,
    *,
    shown: Shown,
) -> bool:
    """Run to the end, or until interrupted or `wants_to_stop`. True if it reached the last step."""
    # Adapters are small; what they take is not looked up.
    num_bytes = 0 if config.model.lora_rank else published_bytes(Path(config.model.path))
    with meeting_folder(num_bytes) as meeting:
        with preparing(run) as activity, activity(PREPARING, IMPORTING), activity.quiet():
            start_server()
        supervisor = Supervisor(
            LocalWorkers(config, run, checkpoint, meeting, shown.started),
            run,
            num_searchers=config.searcher.num_searchers,
            max_restarts=config.run.max_restarts,
            stuck_seconds=config.run.stuck_seconds,
            elapsed=time.time() - shown.started + (checkpoint.state()["elapsed"] if checkpoint else 0.0),
            wants_to_stop=wants_to_stop,
        )

        def stop(*signal: Any) -> None:
            shown.stopping()
            supervisor.interrupt()

        with on_interrupt(stop):
            return supervisor.watch()


def crowding(config: Config) -> str | None:
    """A warning if more processes would work at the same time than there are cores."""
    num_searchers, cores = config.searcher.num_searchers, num_cores()
    num_processes = num_searchers if config.trainer.takes_turns else 1 + num_searchers
    if num_processes <= cores:
        return None
    return (
        f"warning: {num_processes} processes share {cores} core{'s' if cores > 1 else ''} (searcher.num_searchers = "
        f"{num_searchers}): more Searchers than cores make a run slower, not faster"
    )


class LocalWorkers:
    """Processes of this machine, which meet in a private folder."""

    def __init__(self, config: Config, run: Path, checkpoint: Checkpoint | None, meeting: Path, started: float) -> None:
        """`started`: when the run was asked for, by the clock."""
        self._config = config
        self._run = run
        self._checkpoint = checkpoint
        self._meeting = meeting
        self._key = secrets.token_bytes(32)
        self._started = started
        self._processes: dict[str, BaseProcess] = {}
        self._held: dict[str, float] = {}
        """Bytes of memory that each was last seen to hold."""

    def start_trainer(self) -> None:
        self._start(TRAINER, trainer_main)

    def start_searcher(self, name: SearcherName) -> None:
        self._start(name.process, searcher_main, name)

    def poll(self, seconds: float) -> Sequence[Exit]:
        for name, process in self._processes.items():
            held = resident_megabytes(process.pid or 0)
            self._held[name] = self._held.get(name, 0.0) if math.isnan(held) else 2**20 * held
        wait([process.sentinel for process in self._processes.values()], seconds)
        ended = [name for name, process in self._processes.items() if not process.is_alive()]
        return [
            _exit_of(name, self._processes.pop(name).exitcode or 0, self._run, self._held.pop(name, 0.0))
            for name in ended
        ]

    def activities(self) -> Sequence[Mapping[str, Any]]:
        return read_activities(self._run)

    def stop(self, process: str) -> None:
        if process in self._processes:
            self._processes[process].terminate()

    def kill(self, process: str) -> None:
        # Its reward processes notice that it is gone, and end.
        self._processes[process].kill()

    def kill_all(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(_KILL_SECONDS)

    def _start(self, name: str, target: Callable[..., None], *arguments: SearcherName) -> None:
        error_file(self._run, name).unlink(missing_ok=True)
        num_threads = self._threads(name)
        given = ProcessArguments(
            self._config,
            self._run,
            self._meeting,
            self._key,
            num_threads,
            self._checkpoint.path if self._checkpoint else None,
            self._started,
            dict(os.environ),
            given_for(self._config.reward.functions),
        )
        self._processes[name] = start_process(target, (given, *arguments), name, num_threads)

    def _threads(self, name: str) -> int:
        """Cores shared out over the processes that work at the same time. Those that take turns get all of them."""
        if self._config.run.num_threads:
            return self._config.run.num_threads
        num_searchers = self._config.searcher.num_searchers
        if self._config.trainer.takes_turns:
            return num_cores() if name == TRAINER else max(1, num_cores() // num_searchers)
        return max(1, num_cores() // (1 + num_searchers))


def trainer_main(given: ProcessArguments) -> None:
    def body(activity: Activity) -> Outcome:
        from tba.channels.shared_memory import SharedWeightPublisher
        from tba.channels.socket import SocketGroupReceiver

        groups = SocketGroupReceiver(given.meeting, given.key)  # before what takes long: Searchers connect meanwhile
        with activity(STARTING, IMPORTING), activity.quiet():
            import_torch(given.num_threads)
            from tba.build.trainer import build_trainer
        trainer = build_trainer(
            given.config,
            given.run,
            weights=SharedWeightPublisher(given.meeting),
            groups=groups,
            checkpoint=Checkpoint(given.checkpoint) if given.checkpoint else None,
            started=given.started,
            activity=activity,
            repeatable=False,
        )

        def stop(number: int, frame: Any) -> None:
            trainer.stop_requested = True

        signal.signal(signal.SIGTERM, stop)
        trainer.run()
        return Outcome.FINISHED if trainer.finished else Outcome.STOPPED

    run_process(TRAINER, given, body)


def searcher_main(given: ProcessArguments, name: SearcherName) -> None:
    def body(activity: Activity) -> Outcome:
        from tba.channels.shared_memory import SharedWeightSubscriber
        from tba.channels.socket import SocketGroupSender

        with activity(STARTING, "connecting to the Trainer"):
            groups = SocketGroupSender(given.meeting, given.key, parent_alive, activity.quiet)
        with activity(STARTING, IMPORTING), activity.quiet():
            import_torch(given.num_threads)
            from tba.build.searcher import build_searcher
            from tba.build.trainer import build_staleness
        checkpoint = Checkpoint(given.checkpoint) if given.checkpoint else None
        searcher = build_searcher(
            given.config,
            given.run,
            name,
            weights=SharedWeightSubscriber(given.meeting, parent_alive),
            groups=groups,
            activity=activity,
            taking_turns=given.config.trainer.has_budgets,
            staleness=build_staleness(given.config, checkpoint, repeatable=False),
        )
        searcher.run()
        searcher.close()
        groups.close()
        return Outcome.FINISHED

    run_process(name.process, given, body)


def _exit_of(process: str, code: int, run: Path, held: float = 0.0) -> Exit:
    """`held`: bytes of memory that it had a moment before."""
    path = error_file(run, process)
    error = path.read_text("utf-8") if path.exists() else ""
    outcome = next((outcome for outcome, other in EXIT_CODES.items() if other == code), Outcome.DIED)
    if code >= 0:
        return Exit(process, outcome, f"ended with exit code {code}", error)
    how = f"was killed by signal {-code} ({signal.Signals(-code).name})"
    if held:
        how += f" while it held {held / 1e9:.1f} of the machine's {total_memory() / 1e9:.1f} GB of memory"
    # The kernel kills so when memory runs out, and so does nearly nobody else.
    return Exit(process, outcome, how, error, maybe_out_of_memory=-code == signal.SIGKILL)
