"""All in one process, in turn, deterministically: for tests, debugging and strictly synchronous baselines.

A publication gives every Searcher one round with the new weights; what they made waits for the Trainer's next merge,
as it would if they had worked meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tba.build import build_searcher, build_trainer
from tba.channels.inline import InlineGroups, InlineWeights
from tba.checkpoint import Checkpoint
from tba.config import Config
from tba.launch.processes import on_interrupt
from tba.trainer import Trainer


def run_inline(config: Config, run: Path, checkpoint: Checkpoint | None) -> bool:
    """Run to the end, or to the sync after a Ctrl-C. True if it reached the last step."""
    started = time.time()
    weights, groups = InlineWeights(), InlineGroups()
    searchers = [
        build_searcher(config, run, index, 0, weights=weights, groups=groups)
        for index in range(config.searcher.num_searchers)
    ]
    before_round: list[dict[str, Any]] = []
    try:
        trainer = build_trainer(
            config,
            run,
            weights=weights,
            groups=groups,
            checkpoint=checkpoint,
            started=started,
            searcher_states=lambda: list(before_round),
        )
        if checkpoint is not None:
            for searcher, state in zip(searchers, checkpoint.state()["searchers"], strict=True):
                searcher.restore(state)

        def search() -> None:
            # A resume publishes the same version again, so a checkpoint keeps the state before the round.
            before_round[:] = [searcher.state() for searcher in searchers]
            if trainer.step < config.trainer.num_steps and not trainer.stop_requested:
                with trainer.activity("search", f"version {trainer.step}"):
                    for searcher in searchers:
                        searcher.run_round()

        def end() -> None:
            for searcher in searchers:
                searcher.finish()

        weights.on_publish = groups.on_wait = search
        groups.on_drain = end
        with stop_on_interrupt(trainer):
            trainer.run()
        return trainer.step >= config.trainer.num_steps
    finally:
        for searcher in searchers:
            searcher.scorer.close()


@contextmanager
def stop_on_interrupt(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C asks the Trainer to stop in order, the second interrupts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def request(number: int, frame: Any) -> None:
        if trainer.stop_requested:
            raise KeyboardInterrupt
        trainer.stop_requested = True

    with on_interrupt(request):
        yield
