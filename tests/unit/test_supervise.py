"""The policy of launchers, over processes that are made up: no test here starts one, and time passes when told to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tba.launch.silence import LONGEST_LOOK, Silence
from tba.launch.supervise import (
    GRACE_SECONDS,
    TICK_SECONDS,
    Exit,
    Outcome,
    Supervisor,
    TrainerDiedError,
    next_incarnation,
)
from tba.runs.activity import ENDING, TRAINER
from tba.runs.metrics import read_metrics
from tba.types import SearcherName, TbaError

MEMORY = "out of memory"


@dataclass
class Process:
    name: str
    pid: int
    beats: int = 0
    doing: str = "work"
    is_silent: bool = False


class FakeWorkers:
    """Processes that do what a script says, one line of it at each poll. The Trainer finishes after the last line."""

    def __init__(self, script: Iterable[Callable[[FakeWorkers], Any]] = ()) -> None:
        self.now = 0.0
        self.processes: dict[str, Process] = {}
        self.shown: dict[str, dict[str, Any]] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.killed: list[str] = []
        self.script = iter(script)
        self._exits: list[Exit] = []
        self._pids = itertools.count(1)
        self._is_over = False

    def start_trainer(self) -> None:
        self._start(TRAINER, TRAINER)

    def start_searcher(self, name: SearcherName) -> None:
        self._start(name.process, str(name))

    def poll(self, seconds: float) -> Sequence[Exit]:
        self.now += seconds
        line = next(self.script, None)
        if line is not None:
            line(self)
        elif not self._is_over:
            self._is_over = True
            self.end(TRAINER, Outcome.FINISHED)
            for name in [p.name for p in self.processes.values() if not p.is_silent]:
                self.end(name, Outcome.FINISHED)
        for process in self.processes.values():
            if not process.is_silent:
                process.beats += 1
                self.shown[process.name] = self._record(process)
        exits, self._exits = self._exits, []
        return exits

    def activities(self) -> Sequence[Mapping[str, Any]]:
        return list(self.shown.values())

    def stop(self, process: str) -> None:
        self.stopped.append(process)
        self.end(process, Outcome.STOPPED)

    def kill(self, process: str) -> None:
        self.killed.append(process)
        self.end(process, Outcome.DIED, "was killed by signal 9 (SIGKILL)", maybe_out_of_memory=True)

    def kill_all(self) -> None:
        self.processes.clear()

    def end(self, name: str, outcome: Outcome, how: str = "", error: str = "", **more: Any) -> None:
        if self.processes.pop(name, None) is not None:
            self._exits.append(Exit(name, outcome, how, error, **more))

    def _start(self, name: str, source: str) -> None:
        assert name not in self.processes, "no two at once"
        self.started.append(source)
        self.processes[name] = Process(name, next(self._pids))

    def _record(self, process: Process) -> dict[str, Any]:
        return {"process": process.name, "pid": process.pid, "beat": process.beats, "doing": process.doing} | {
            "detail": "",
            "step": 7,
        }


def nothing(workers: FakeWorkers) -> None:
    """A line of a script in which everybody works."""


def dies(name: str, **how: Any) -> Callable[[FakeWorkers], None]:
    return lambda workers: workers.end(name, Outcome.DIED, **{"how": "ended with exit code 1", **how})


def falls_silent(name: str, doing: str = "work") -> Callable[[FakeWorkers], None]:
    def line(workers: FakeWorkers) -> None:
        if name in workers.processes:
            workers.processes[name].doing = doing
            workers.shown[name] = workers._record(workers.processes[name])
            workers.processes[name].is_silent = True

    return line


def ticks(seconds: float) -> list[Callable[[FakeWorkers], None]]:
    return [nothing] * round(seconds / TICK_SECONDS)


def supervisor(workers: FakeWorkers, run: Path, **settings: Any) -> Supervisor:
    given = {"num_searchers": 2, "max_restarts": 3, "stuck_seconds": 10.0, **settings}
    return Supervisor(workers, run, clock=lambda: workers.now, **given)


def events(run: Path) -> list[dict[str, Any]]:
    return read_metrics(run)


# ---------------------------------------------------------------------------------------------------------------------
# Laws
# ---------------------------------------------------------------------------------------------------------------------

NAMES = (TRAINER, "searcher-0", "searcher-1")
LINES = st.one_of(
    st.just(nothing),
    st.sampled_from([dies(name) for name in NAMES[1:]]),
    st.sampled_from([falls_silent(name) for name in NAMES[1:]]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(LINES, max_size=120), st.integers(0, 4), st.sampled_from([0.0, 1.0, 5.0]))
def test_whatever_searchers_do_the_run_ends_and_restarts_stay_within_the_budget(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[Callable[[FakeWorkers], None]],
    max_restarts: int,
    stuck_seconds: float,
) -> None:
    run = tmp_path_factory.mktemp("run")
    workers = FakeWorkers(lines)
    watched = supervisor(workers, run, max_restarts=max_restarts, stuck_seconds=stuck_seconds)
    error = ""
    try:
        assert watched.watch()
    except TbaError as raised:
        error = str(raised)
    gave_up = f"run.max_restarts = {max_restarts}" in error
    assert gave_up == bool(error)
    assert workers.processes == {}, "nobody is left"
    assert len(set(workers.started)) == len(workers.started), "no two starts share a name"
    restarts = len(workers.started) - len(NAMES)
    assert restarts <= max_restarts
    assert gave_up <= (restarts == max_restarts)
    counted = [event for event in events(run) if event["event"] == "searcher_restarted"]
    assert len(counted) == restarts
    assert (TRAINER in workers.stopped) == gave_up


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(NAMES), max_size=60))
def test_nobody_who_shows_something_in_time_is_taken_for_stuck(
    tmp_path_factory: pytest.TempPathFactory, beating: list[str]
) -> None:
    """Processes that are busy with long steps: each is silent for a while, again and again, and never for too long."""
    run = tmp_path_factory.mktemp("run")

    def only(name: str) -> Callable[[FakeWorkers], None]:
        def line(workers: FakeWorkers) -> None:
            for process in workers.processes.values():
                process.is_silent = process.name != name

        return line

    def all_beat(workers: FakeWorkers) -> None:
        for process in workers.processes.values():
            process.is_silent = False

    script = [line for name in beating for line in (*[only(name)] * 10, all_beat)]
    workers = FakeWorkers([*script, all_beat])
    assert supervisor(workers, run, stuck_seconds=11.5 * TICK_SECONDS).watch()
    assert not (run / "metrics.jsonl").exists()
    assert workers.killed == []


# ---------------------------------------------------------------------------------------------------------------------
# Searchers that die, or are stuck
# ---------------------------------------------------------------------------------------------------------------------


def test_a_searcher_that_died_is_replaced_under_another_name(tmp_path: Path) -> None:
    workers = FakeWorkers([nothing, dies("searcher-1"), nothing])
    assert supervisor(workers, tmp_path).watch()
    assert workers.started == ["trainer", "searcher-0", "searcher-1", "searcher-1.1"]
    [event] = events(tmp_path)
    assert (event["event"], event["searcher"], event["why"]) == ("searcher_restarted", 1, "ended with exit code 1")
    assert event["step"] == 7


def test_a_user_error_of_a_searcher_ends_the_run_with_its_message(tmp_path: Path) -> None:
    workers = FakeWorkers([lambda w: w.end("searcher-0", Outcome.USER_ERROR, error="fix the reward"), nothing])
    with pytest.raises(TbaError, match=r"^fix the reward$"):
        supervisor(workers, tmp_path).watch()
    assert workers.stopped == [TRAINER], "which saves"
    assert len(workers.started) == 3


@pytest.mark.parametrize("error", ["", "Traceback …\nValueError: what was wrong"])
def test_restarts_that_are_used_up_end_the_run_with_the_last_reason(tmp_path: Path, error: str) -> None:
    line = dies("searcher-0", how="was killed by signal 9 (SIGKILL)", error=error, maybe_out_of_memory=True)
    with pytest.raises(TbaError, match=r"run\.max_restarts = 0 times") as ended:
        supervisor(FakeWorkers([line]), tmp_path, max_restarts=0).watch()
    reason = "ValueError: what was wrong" if error else rf"SIGKILL\), probably {MEMORY}: lower searcher."
    ended.match(reason)
    assert len(str(ended.value).splitlines()) == 1


def test_a_stuck_searcher_is_told_killed_and_replaced(tmp_path: Path) -> None:
    workers = FakeWorkers([nothing, falls_silent("searcher-0", "generate"), *ticks(30)])
    assert supervisor(workers, tmp_path, max_restarts=1).watch()
    assert workers.killed == ["searcher-0"]
    assert workers.started[-1] == "searcher-0.1"
    stuck, restarted = events(tmp_path)
    assert stuck["event"] == "process_stuck"
    assert (stuck["process"], stuck["searcher"], stuck["doing"], stuck["seconds"]) == (
        "searcher-0",
        0,
        "generating",
        10,
    )
    assert restarted["why"] == "gave no sign of life for 10 s (generating) and was killed"
    assert MEMORY not in restarted["why"], "we know who killed it"


def test_a_searcher_that_never_shows_anything_is_stuck_too(tmp_path: Path) -> None:
    """What one before it has left to be seen is not taken for its own."""
    workers = FakeWorkers([falls_silent("searcher-0"), *ticks(30)])
    workers.shown["searcher-0"] = {"process": "searcher-0", "pid": 99, "beat": 5, "doing": "evaluate", "detail": ""}
    start = workers.start_searcher

    def start_silent(name: SearcherName) -> None:
        start(name)
        workers.processes[name.process].is_silent = name == SearcherName(0)

    workers.start_searcher = start_silent  # type: ignore[method-assign]
    workers.script = iter(ticks(30))
    assert supervisor(workers, tmp_path).watch()
    stuck, _ = events(tmp_path)
    assert (stuck["process"], stuck["doing"]) == ("searcher-0", "it has shown nothing yet")
    assert workers.started == ["trainer", "searcher-0", "searcher-1", "searcher-0.1"]


def test_a_searcher_that_stays_stuck_uses_up_the_restarts(tmp_path: Path) -> None:
    script = [line for _ in range(3) for line in (falls_silent("searcher-0"), *ticks(11))]
    with pytest.raises(TbaError, match=r"run\.max_restarts = 2 times; the last one: gave no sign of life for 10 s"):
        supervisor(FakeWorkers(script), tmp_path, max_restarts=2).watch()


def test_with_0_stuck_seconds_nobody_is_stuck(tmp_path: Path) -> None:
    workers = FakeWorkers([falls_silent("searcher-0"), *ticks(1_000)])
    assert supervisor(workers, tmp_path, stuck_seconds=0).watch()
    assert [event["event"] for event in events(tmp_path)] == ["searcher_lost"], "at the end, where it is in the way"


def test_time_in_which_the_launcher_itself_was_stopped_does_not_count(tmp_path: Path) -> None:
    """Ctrl-Z stops all; the first look afterwards sees everybody as they were hours ago."""

    def hours_pass(workers: FakeWorkers) -> None:
        workers.now += 10_000
        for process in workers.processes.values():
            process.is_silent = True

    def all_beat(workers: FakeWorkers) -> None:
        for process in workers.processes.values():
            process.is_silent = False

    workers = FakeWorkers([nothing, hours_pass, all_beat, nothing])
    assert supervisor(workers, tmp_path, stuck_seconds=LONGEST_LOOK + 1).watch()
    assert workers.killed == []


def test_silence_is_counted_from_the_last_news() -> None:
    now = 0.0
    silence = Silence(lambda: now)
    shown = {"process": "trainer", "pid": 1, "beat": 1}
    silence.begin("trainer", [shown])
    for beat, seconds in ((1, 1), (1, 2), (2, 0), (2, 1), (3, 0)):
        now += 1
        silence.look([shown | {"beat": beat}])
        assert silence.seconds("trainer") == seconds
    silence.look([])
    assert silence.has_shown("trainer")


# ---------------------------------------------------------------------------------------------------------------------
# The Trainer
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_stuck_trainer_ends_the_run_with_one_line(tmp_path: Path, has_checkpoint: bool) -> None:
    (tmp_path / "checkpoints" / ("step-000004" if has_checkpoint else "none")).mkdir(parents=True)
    workers = FakeWorkers([nothing, falls_silent(TRAINER, "compute step 12"), *ticks(30)])
    with pytest.raises(TrainerDiedError) as error:
        supervisor(workers, tmp_path).watch()
    [line] = str(error.value).splitlines()
    way_on = f"tba train --resume {tmp_path}" if has_checkpoint else "start again with --overwrite"
    for part in ("no sign of life for 10 s (compute step 12)", way_on, "run.stuck_seconds"):
        assert part in line
    assert MEMORY not in line
    [event] = events(tmp_path)
    assert (event["event"], event["process"]) == ("process_stuck", TRAINER)
    assert len(workers.started) == 3


def test_a_trainer_that_was_killed_as_without_memory_is_told_what_takes_less(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-000004").mkdir(parents=True)
    line = dies(TRAINER, how="was killed by signal 9 (SIGKILL)", maybe_out_of_memory=True)
    with pytest.raises(TrainerDiedError, match=MEMORY) as error:
        supervisor(FakeWorkers([line, nothing]), tmp_path).watch()
    for part in ("SIGKILL", "trainer.micro_batch_tokens", "model.gradient_checkpointing", f"--resume {tmp_path}"):
        assert part in str(error.value)


def test_a_trainer_that_died_leaves_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(TrainerDiedError, match="it ended with exit code 1") as error:
        supervisor(FakeWorkers([dies(TRAINER, error="Traceback …")]), tmp_path).watch()
    assert error.value.trace == "Traceback …"
    assert MEMORY not in str(error.value)


def test_a_user_error_of_the_trainer_is_the_runs(tmp_path: Path) -> None:
    workers = FakeWorkers([lambda w: w.end(TRAINER, Outcome.USER_ERROR, error="no space left"), nothing])
    with pytest.raises(TbaError, match=r"^no space left$"):
        supervisor(workers, tmp_path).watch()


# ---------------------------------------------------------------------------------------------------------------------
# Ends
# ---------------------------------------------------------------------------------------------------------------------


def test_the_first_interrupt_stops_in_order(tmp_path: Path) -> None:
    workers = FakeWorkers()
    watched = supervisor(workers, tmp_path)
    workers.script = iter([nothing, lambda w: watched.interrupt(), nothing])
    assert not watched.watch()
    assert workers.stopped == [TRAINER]
    assert not (tmp_path / "metrics.jsonl").exists()


def test_an_interrupt_after_the_last_step_takes_nothing_back(tmp_path: Path) -> None:
    """While it waited for the last evaluation: the Trainer ends well, and there is nothing to resume."""
    workers = FakeWorkers()
    watched = supervisor(workers, tmp_path)

    def interrupt(workers: FakeWorkers) -> None:
        workers.end(TRAINER, Outcome.FINISHED)
        watched.interrupt()

    workers.script = iter([nothing, interrupt, *ticks(60)])
    assert watched.watch()


def test_the_second_interrupt_ends_everything_at_once(tmp_path: Path) -> None:
    workers = FakeWorkers()
    watched = supervisor(workers, tmp_path)
    workers.stop = workers.stopped.append  # type: ignore[method-assign] # it is too busy to notice
    workers.script = iter([nothing, lambda w: watched.interrupt(), nothing, lambda w: watched.interrupt(), *ticks(60)])
    assert not watched.watch()
    assert workers.processes == {}
    assert workers.now == 4 * TICK_SECONDS


def test_a_searcher_that_dies_after_an_interrupt_is_not_replaced(tmp_path: Path) -> None:
    workers = FakeWorkers()
    watched = supervisor(workers, tmp_path)
    workers.stop = workers.stopped.append  # type: ignore[method-assign]
    script = [dies("searcher-0"), nothing, lambda w: w.end(TRAINER, Outcome.STOPPED), nothing]
    workers.script = iter([lambda w: watched.interrupt(), *script])
    assert not watched.watch()
    assert len(workers.started) == 3


def test_a_trainer_that_is_stuck_while_it_stops_is_ended(tmp_path: Path) -> None:
    """Ctrl-C, once, must not wait for ever either."""
    workers = FakeWorkers()
    watched = supervisor(workers, tmp_path)
    workers.stop = workers.stopped.append  # type: ignore[method-assign]
    workers.script = iter([lambda w: watched.interrupt(), falls_silent(TRAINER), *ticks(60)])
    assert not watched.watch()
    assert workers.killed[0] == TRAINER


def test_the_end_waits_for_searchers_only_for_a_moment(tmp_path: Path) -> None:
    workers = FakeWorkers([nothing, lambda w: w.end(TRAINER, Outcome.FINISHED), *ticks(1_000)])
    assert supervisor(workers, tmp_path).watch()
    assert workers.killed == ["searcher-0", "searcher-1"]
    assert GRACE_SECONDS <= workers.now <= GRACE_SECONDS + 1
    assert [(event["event"], event["searcher"]) for event in events(tmp_path)] == [
        ("searcher_lost", 0),
        ("searcher_lost", 1),
    ]


def test_a_searcher_stuck_in_the_last_evaluation_is_killed_and_not_replaced(tmp_path: Path) -> None:
    def last_step(workers: FakeWorkers) -> None:
        workers.processes[TRAINER].doing = ENDING

    workers = FakeWorkers([last_step, falls_silent("searcher-0", "evaluate"), *ticks(12)])
    assert supervisor(workers, tmp_path).watch()
    stuck, lost = events(tmp_path)
    assert (stuck["event"], stuck["doing"]) == ("process_stuck", "evaluate")
    assert (lost["event"], lost["searcher"]) == ("searcher_lost", 0)
    assert len(workers.started) == 3


def test_a_searcher_that_was_stuck_is_told_to_be_lost_even_if_the_trainer_ends_first(tmp_path: Path) -> None:
    class KilledSlowly(FakeWorkers):
        def kill(self, process: str) -> None:
            self.end(TRAINER, Outcome.FINISHED)
            super().kill(process)

    workers = KilledSlowly([nothing, falls_silent("searcher-0", "evaluate"), *ticks(12)])
    assert supervisor(workers, tmp_path, num_searchers=1).watch()
    stuck, lost = events(tmp_path)
    assert (stuck["event"], lost["event"]) == ("process_stuck", "searcher_lost")
    assert "no sign of life" in lost["why"]
    assert workers.started == [TRAINER, "searcher-0"], "and nobody is started any more"


def test_events_of_a_resumed_run_have_its_time(tmp_path: Path) -> None:
    workers = FakeWorkers([*ticks(2), dies("searcher-0"), nothing])
    assert supervisor(workers, tmp_path, elapsed=100.0).watch()
    assert events(tmp_path)[0]["time"] == pytest.approx(102, abs=1)


def test_starts_are_counted_over_all_resumes(tmp_path: Path) -> None:
    assert [next_incarnation(tmp_path, 0) for _ in range(3)] == [0, 1, 2]
    assert next_incarnation(tmp_path, 1) == 0
    assert [path.name for path in (tmp_path / "processes").iterdir() if path.suffix == ".tmp"] == []
