"""How the processes of a run are looked after, wherever they run: the policy of all launchers that start some.

A Searcher that died or is stuck is replaced, as often as the run allows; an error that is the user's ends the run with
its message. A Trainer that died or is stuck ends the run. The first Ctrl-C lets the Trainer save, the second ends
everything at once. When the Trainer is done, Searchers have a moment to end by themselves. What happened stands in
`metrics.jsonl` as events.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

from tba.launch.silence import Silence
from tba.learn.checkpoint import list_checkpoints
from tba.runs.activity import ENDING, PROCESSES, TRAINER
from tba.runs.metrics import Metrics
from tba.runs.phases import doing_text
from tba.types import SearcherName, TbaError

TICK_SECONDS = 0.25
GRACE_SECONDS = 20.0
"""For Searchers to end once the Trainer has: it waited for their last evaluation already (`run.end_seconds`)."""
_LESS_FOR_THE_TRAINER = "lower trainer.micro_batch_tokens, or set model.gradient_checkpointing"
_LESS_FOR_A_SEARCHER = "lower searcher.prompts_per_batch, engine.max_new_tokens or searcher.num_searchers"


class Outcome(Enum):
    """How a process ended."""

    FINISHED = auto()
    """A Trainer made its last step; a Searcher was told to end."""
    STOPPED = auto()
    """A Trainer was asked to stop, and saved."""
    USER_ERROR = auto()
    """A mistake that the user can fix: starting it again would not help."""
    DIED = auto()


@dataclass(frozen=True)
class Exit:
    """The end of a process."""

    process: str
    outcome: Outcome
    how: str = ""
    """Of one that died, after "it": `ended with exit code 1`."""
    error: str = ""
    """The user's error, or the traceback that was left behind, if any."""
    maybe_out_of_memory: bool = False


class Workers(Protocol):
    """The processes of a run, by their names as processes."""

    def start_trainer(self) -> None: ...

    def start_searcher(self, name: SearcherName) -> None: ...

    def poll(self, seconds: float) -> Sequence[Exit]:
        """Those that have ended since the last call. Waits so long for one."""
        ...

    def activities(self) -> Sequence[Mapping[str, Any]]:
        """What each shows that it is doing (`runs/activity.py`). Until a new one shows something, what was shown before
        stands."""
        ...

    def stop(self, process: str) -> None:
        """Ask it to stop in order, if it is there."""
        ...

    def kill(self, process: str) -> None:
        """End it whatever it does, and what it has started. Its end is polled like any other."""
        ...

    def kill_all(self) -> None:
        """End all that are left, and wait until they are gone."""
        ...


class TrainerDiedError(Exception):
    """The Trainer ended with an error that is not the user's. Keeps its traceback, if it left one."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.trace = trace


class Supervisor:
    """Sees one run through."""

    def __init__(
        self,
        workers: Workers,
        run: Path,
        *,
        num_searchers: int,
        max_restarts: int,
        stuck_seconds: float,
        elapsed: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wants_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """`elapsed`: the run's time before now. With `stuck_seconds` 0 nobody is taken for stuck. `wants_to_stop` is
        asked again and again; once it says so, the Trainer is asked to stop in order."""
        self._workers = workers
        self._run = run
        self._num_searchers = num_searchers
        self._max_restarts = max_restarts
        self._stuck_seconds = stuck_seconds
        self._clock = clock
        self._wants_to_stop = wants_to_stop
        self._is_stopping = False
        self._began = clock() - elapsed
        self._silence = Silence(clock)
        self._living: dict[str, SearcherName | None] = {}
        self._killed: dict[str, str] = {}
        """Of those that were killed because they were stuck: why, as `Exit.how`."""
        self._num_restarts = 0
        self._num_interrupts = 0
        self._failure: TbaError | None = None
        self._trainer: Exit | None = None
        self._trainer_ended = 0.0

    def watch(self) -> bool:
        """Start everything and see it through. True if the last step was made."""
        try:
            self._add(TRAINER, None)
            self._workers.start_trainer()
            if self._num_interrupts:  # there was no Trainer to be stopped when it came
                self._workers.stop(TRAINER)
            for index in range(self._num_searchers):
                self._start_searcher(index)
            while self._living and self._num_interrupts < 2:
                for ended in self._workers.poll(TICK_SECONDS):
                    self._take(ended)
                self._kill_the_stuck()
                self._stop_if_wanted()
                if self._trainer is not None:
                    self._end_searchers()
        finally:
            self._workers.kill_all()
        return self._outcome()

    def interrupt(self, *signal: Any) -> None:
        """The first Ctrl-C (or SIGTERM) stops in order, the second at once. Takes what a signal handler is given."""
        self._num_interrupts += 1
        if self._num_interrupts == 1:
            self._workers.stop(TRAINER)

    def _stop_if_wanted(self) -> None:
        if not self._is_stopping and self._wants_to_stop():
            self._is_stopping = True
            self._workers.stop(TRAINER)

    def _start_searcher(self, index: int) -> None:
        name = SearcherName(index, next_incarnation(self._run, index))
        self._add(name.process, name)
        self._workers.start_searcher(name)

    def _add(self, process: str, name: SearcherName | None) -> None:
        self._living[process] = name
        self._silence.begin(process, self._workers.activities())

    def _take(self, ended: Exit) -> None:
        name = self._living.pop(ended.process, None)
        if ended.process == TRAINER:
            self._trainer, self._trainer_ended = ended, self._clock()
        elif name is not None and ended.outcome is not Outcome.FINISHED and self._is_missed(ended.process):
            self._take_lost(name, ended)

    def _take_lost(self, name: SearcherName, ended: Exit) -> None:
        """A Searcher that did not end by itself."""
        how = self._killed.pop(ended.process, None) or _how(ended, _LESS_FOR_A_SEARCHER)
        if ended.outcome is Outcome.USER_ERROR:
            self._give_up(TbaError(ended.error))
        elif self._is_over() or self._is_ending():
            self._event("searcher_lost", searcher=name.index, source=str(name), why=how)
        elif self._num_restarts >= self._max_restarts:
            self._event("searcher_lost", searcher=name.index, source=str(name), why=how)
            self._give_up(
                TbaError(
                    f"Searchers died more than run.max_restarts = {self._max_restarts} times; the last one: "
                    f"{_last_line(ended.error) or how}"
                )
            )
        else:
            self._num_restarts += 1
            self._event("searcher_restarted", searcher=name.index, source=str(name), why=how)
            self._start_searcher(name.index)

    def _is_missed(self, process: str) -> bool:
        """One that was told to be stuck is told to be lost too, even if the Trainer has ended meanwhile."""
        return process in self._killed or not self._is_over()

    def _is_over(self) -> bool:
        """Whether no process is replaced any more."""
        return self._trainer is not None or self._num_interrupts > 0 or self._failure is not None

    def _is_ending(self) -> bool:
        """Whether the last step is made. A Searcher that is started now would come too late for anything."""
        ending = any(a["process"] == TRAINER and a["doing"] == ENDING for a in self._workers.activities())
        return ending and self._silence.has_shown(TRAINER)

    def _give_up(self, failure: TbaError) -> None:
        """Let the Trainer save what it has, then tell."""
        self._failure = failure
        self._workers.stop(TRAINER)

    def _kill_the_stuck(self) -> None:
        activities = {activity["process"]: activity for activity in self._workers.activities()}
        self._silence.look(activities.values())
        for process, name in self._living.items():
            seconds = self._silence.seconds(process)
            if not self._stuck_seconds or seconds < self._stuck_seconds or process in self._killed:
                continue
            doing = doing_text(activities[process]) if self._silence.has_shown(process) else "it has shown nothing yet"
            self._killed[process] = f"gave no sign of life for {seconds:.0f} s ({doing}) and was killed"
            who = {} if name is None else {"searcher": name.index}
            self._event("process_stuck", process=process, **who, doing=doing, seconds=round(seconds))
            self._workers.kill(process)

    def _end_searchers(self) -> None:
        """After the Trainer. They end by themselves once it has closed the weights; who does not is killed."""
        assert self._trainer is not None
        in_order = self._trainer.outcome is Outcome.FINISHED and not self._num_interrupts
        if in_order and self._clock() - self._trainer_ended < GRACE_SECONDS:
            return
        for process, name in self._living.items():
            if in_order and name is not None:
                why = "did not end with the run and was killed"
                self._event("searcher_lost", searcher=name.index, source=str(name), why=why)
            self._workers.kill(process)
        self._living.clear()

    def _event(self, event: str, **values: Any) -> None:
        metrics = Metrics(self._run, elapsed=self._clock() - self._began)
        steps = [activity.get("step", 0) for activity in self._workers.activities()]
        metrics.write("event", max(steps, default=0), {"event": event, **values})
        metrics.close()

    def _outcome(self) -> bool:
        if self._failure is not None:
            raise self._failure
        if self._trainer is None:
            return False
        match self._trainer.outcome:
            case Outcome.FINISHED:
                return True
            case Outcome.USER_ERROR if not self._num_interrupts:
                raise TbaError(self._trainer.error)
            case Outcome.DIED if not self._num_interrupts:
                raise self._death_of(self._trainer)
        return False

    def _death_of(self, trainer: Exit) -> TrainerDiedError:
        how = f"{'then ' if trainer.maybe_out_of_memory else ''}resume with: tba train --resume {self._run}"
        if not list_checkpoints(self._run):
            how = "there is no checkpoint yet, start again with --overwrite"
        if TRAINER in self._killed:
            how += "; if it was only slow, raise run.stuck_seconds"
            return TrainerDiedError(f"the Trainer {self._killed[TRAINER]}; {how}", trainer.error)
        return TrainerDiedError(f"the Trainer died: it {_how(trainer, _LESS_FOR_THE_TRAINER)}; {how}", trainer.error)


def next_incarnation(run: Path, index: int) -> int:
    """How often this Searcher was started before, over all resumes: no two starts share samples or group names."""
    path = run / PROCESSES / f"{SearcherName(index).process}.starts"
    path.parent.mkdir(parents=True, exist_ok=True)
    count = int(json.loads(path.read_text("utf-8"))) if path.exists() else 0
    partial = path.with_suffix(".starts.tmp")
    partial.write_text(json.dumps(count + 1), "utf-8")
    os.replace(partial, path)
    return count


def _how(ended: Exit, less_memory: str) -> str:
    """How a process ended; `less_memory` is what to do if it took too much."""
    return ended.how + (f", probably out of memory: {less_memory}" if ended.maybe_out_of_memory else "")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
