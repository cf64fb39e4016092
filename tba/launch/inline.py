"""All in one process, in turn, deterministically: for tests, debugging and strictly synchronous baselines.

Each version of the weights is explored for one round by every Searcher; what they made waits for the Trainer's next
merge, as it would if they had worked meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tba.build.searcher import build_searcher
from tba.build.trainer import build_staleness, build_trainer
from tba.channels.inline import InlineGroups, InlineWeights
from tba.config.settings import Config
from tba.launch.processes import on_interrupt
from tba.launch.shown import Shown
from tba.learn.checkpoint import Checkpoint
from tba.learn.trainer import Trainer
from tba.runs.activity import TRAINER, TURN, Activity
from tba.search.searcher import Searcher
from tba.types import SearcherName


def run_inline(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    wants_to_stop: Callable[[], bool] = lambda: False,
    *,
    shown: Shown,
) -> bool:
    """Run to the end, or to the sync after a Ctrl-C, or until it `wants_to_stop`. True if it reached the last step."""
    weights, groups = InlineWeights(), InlineGroups()
    names = [SearcherName(index) for index in range(config.searcher.num_searchers)]
    staleness = build_staleness(config, checkpoint, repeatable=True)
    searchers: list[Searcher] = []
    try:
        for name in names:
            searchers.append(
                build_searcher(
                    config,
                    run,
                    name,
                    weights=weights,
                    groups=groups,
                    activity=Activity(run, name.process, between=TURN),
                    taking_turns=True,
                    staleness=staleness,
                )
            )
        trainer = build_trainer(
            config,
            run,
            weights=weights,
            groups=groups,
            checkpoint=checkpoint,
            started=shown.started,
            activity=Activity(run, TRAINER),
            repeatable=True,
        )
        if checkpoint is not None:
            for searcher, state in zip(searchers, checkpoint.state()["searchers"], strict=True):
                searcher.restore(state)
        with stop_on_interrupt(trainer, shown.stopping), trainer.stopped_if_disk_is_full():
            take_turns(trainer, searchers, wants_to_stop)
        return trainer.finished
    finally:
        for searcher in searchers:
            searcher.close()


def take_turns(
    trainer: Trainer, searchers: Sequence[Searcher], wants_to_stop: Callable[[], bool] = lambda: False
) -> None:
    """The whole run: Searchers explore, the Trainer trains on what they made, up to the next version of the weights.
    `wants_to_stop` is asked after each such turn."""
    for searcher in searchers:
        searcher.begin()
    trainer.begin()
    states = [searcher.state() for searcher in searchers]
    while not trainer.done:
        with trainer.activity("search", f"version {trainer.version}"):
            for searcher in searchers:
                searcher.run_round()
        if trainer.advance():
            # All that they made is merged. A resume from here publishes these weights again, and goes on likewise; a
            # round that was not merged is repeated.
            states = [searcher.state() for searcher in searchers]
            trainer.save_if_due(states)
        if wants_to_stop():
            trainer.stop_requested = True
    trainer.conclude(states)
    for searcher in searchers:
        searcher.finish()
    trainer.finish()


@contextmanager
def stop_on_interrupt(trainer: Trainer, stopping: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C asks the Trainer to stop in order, the second interrupts. The first does where no step was made
    yet, as in the first evaluation: there is nothing to save."""
    first = trainer.step

    def request(number: int, frame: Any) -> None:
        stopping()
        if trainer.stop_requested or trainer.step == first:
            raise KeyboardInterrupt
        trainer.stop_requested = True

    with on_interrupt(request):
        yield
