"""`tba replay`: the training side of a run alone, on the data it was trained on. Nothing is generated.

The same Trainer makes the same steps in this process, on the groups that were drawn then. With the same settings and
number of threads it computes the same numbers, to the bit; with others it tells what they would have done.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tba.buffer.draws import Rows, read_draws
from tba.buffer.recorded import recorded_groups
from tba.config.settings import Config
from tba.launch.preflight import check_model
from tba.launch.processes import use_threads
from tba.launch.shown import IMPORTING
from tba.learn.checkpoint import list_checkpoints
from tba.learn.epochs import Epochs
from tba.runs.activity import TRAINER, Activity
from tba.runs.bars import Work
from tba.runs.metrics import costs, read_metrics
from tba.runs.replays import new_replay, replay_config
from tba.runs.summary import first_and_last
from tba.runs.terminal import terminal
from tba.runs.wording import counted
from tba.types import Group, TbaError

if TYPE_CHECKING:  # what is asked for is checked before torch is loaded
    from tba.learn.trainer import Trainer

_COMPARED = ("loss", "residual_rms", "log_ratio", "grad_norm", "learning_rate", "reward")


def replay_run(of: Path, overrides: Mapping[str, Any], num_steps: int | None = None) -> tuple[Path, bool]:
    """Replay a run's first steps, all by default: the folder of the replay, and whether it made its last step.

    The recorded run is only read, and may be going on. `num_steps` cuts the replay short and leaves the schedules
    as they are; the setting `trainer.num_steps` is also what they are stretched over.
    """
    config = replay_config(of, overrides)
    if num_steps is None and "num_steps" in overrides.get("trainer", {}):
        num_steps = config.trainer.num_steps
    draws = read_draws(of, num_steps)
    check_model(config.model.path, config.model.trust_remote_code)
    console = terminal(quiet=config.run.display == "none")
    with new_replay(config, of, len(draws)) as run, _nothing_left_of_no_step(run):
        console.print(f"tba · {run} · replays {counted(len(draws), 'step')} of {of}", soft_wrap=True)
        with Work(console) as work:
            step = _replay(config, run, of, draws, work)
    recorded, replayed = _train_records(of)[:step], _train_records(run)
    _tell(console, recorded, replayed)
    if not overrides.keys() & {"objective", "trainer"} and _scheduled(recorded) != _scheduled(replayed):
        console.print(
            "The run's settings changed when it was resumed; the replay has its last ones from step 1 on.",
            soft_wrap=True,
        )
    if step < len(draws):
        console.print(f"Stopped at step {step} of {len(draws)}.")
    console.print(f"Evaluate its model with: tba eval {list_checkpoints(run)[-1].model}", soft_wrap=True)
    return run, step >= len(draws)


def _replay(config: Config, run: Path, of: Path, draws: Sequence[Rows], work: Work) -> int:
    """Make the steps, or those up to a Ctrl-C; how many were made."""
    started = time.time()
    work.begin(IMPORTING)
    use_threads(config.run.num_threads)
    from tba.build.trainer import ROLLOUTS, build_trainer
    from tba.channels.nobody import Nobody
    from tba.launch.inline import stop_on_interrupt

    work.begin("loading the model")
    nobody = Nobody()
    trainer = build_trainer(
        config,
        run,
        weights=nobody,
        groups=nobody,
        checkpoint=None,
        started=started,
        activity=Activity(run, TRAINER),
        repeatable=True,
    )
    # The draws are of the line of the newest epoch; data are as old as they were.
    trainer.epochs = Epochs.read(of)
    trainer.epoch = trainer.epochs.newest
    work.begin("training", len(draws), "steps")
    with _told_if_disk_is_full(run), stop_on_interrupt(trainer, lambda: work.say("stopping…")):
        make_steps(trainer, recorded_groups(of / ROLLOUTS, draws), work.advance)
    return trainer.step


def make_steps(trainer: Trainer, steps: Iterator[list[Group]], advance: Callable[[int], None]) -> None:
    """Train on the groups of each step, to the last or until asked to stop, and end the run."""
    while not trainer.stop_requested:
        started = time.monotonic()
        with trainer.activity("read"):
            groups = next(steps, None)
        if groups is None:
            break
        metrics = trainer.train_step(groups)
        spent = costs(time.monotonic() - started, trainer.activity)
        trainer.metrics.write("train", trainer.step, {**metrics, **spent})
        if trainer.is_checkpoint_due:
            trainer.save()
        advance(1)
    trainer.conclude()
    trainer.finish()


@contextmanager
def _told_if_disk_is_full(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise TbaError(f"no space left for {run}: free some, then replay again") from error


@contextmanager
def _nothing_left_of_no_step(run: Path) -> Iterator[None]:
    """An error before the first step leaves no folder, so that the replay can be asked for again by the same name."""
    try:
        yield
    except TbaError:
        if not _train_records(run):
            shutil.rmtree(run)
        raise


def _scheduled(records: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Of each step, what follows from the settings alone."""
    return [[record.get(name) for name in ("step", "learning_rate", "beta", "reference_weight")] for record in records]


def _train_records(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run) if record["kind"] == "train"]


def _tell(console: Console, recorded: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]]) -> None:
    """Means over the first and the last tenth of the steps, of the recorded run and of the replay."""
    table = Table("", "recorded", "replayed", title="first tenth → last tenth of the steps", title_justify="left")
    for name in _COMPARED:
        table.add_row(name, *(_span(first_and_last(records, name)) for records in (recorded, replayed)))
    console.print(table)
    difference = largest_difference(recorded, replayed)
    if difference is not None:
        console.print(f"Largest relative difference between the two losses of a step: {difference:.3g}")


def largest_difference(
    recorded: Sequence[Mapping[str, Any]], replayed: Sequence[Mapping[str, Any]], name: str = "loss"
) -> float | None:
    """Over the steps that both have a number of; relative to the recorded one. None if there is no such step."""
    before = {record["step"]: record[name] for record in recorded}
    pairs = [(before.get(record["step"]), record[name]) for record in replayed]
    return max((_relative(old, new) for old, new in pairs if old is not None and new is not None), default=None)


def _relative(old: float, new: float) -> float:
    return abs(new - old) / abs(old) if old else abs(new - old)


def _span(ends: tuple[float | None, float | None]) -> str:
    return " → ".join("–" if value is None else f"{value:.6g}" for value in ends)
