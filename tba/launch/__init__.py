"""Launchers place, connect and watch the processes of a run; they know no reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tba.config.settings import Config
from tba.launch.memory import settle_memory
from tba.launch.precision import settle
from tba.launch.processes import use_threads
from tba.launch.shown import IMPORTING, Shown, preparing
from tba.learn.checkpoint import Checkpoint
from tba.runs.activity import PREPARING


def launch(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    wants_to_stop: Callable[[], bool] = lambda: False,
    *,
    shown: Shown,
) -> bool:
    """Run with the configured launcher. True if the last step was reached, False if it was stopped in order.
    `wants_to_stop` is asked again and again, in this process."""
    if config.run.launcher == "local":
        from tba.launch.local import crowding, run_local

        warning = crowding(config)
        if warning is not None:
            shown.tell(warning)
        with preparing(run) as activity, activity(PREPARING, "measuring precisions"), activity.quiet():
            config = settle(config, run, checkpoint, tell=shown.tell)
        return run_local(settle_memory(config, run, checkpoint), run, checkpoint, wants_to_stop, shown=shown)
    # What follows from the seed alone must not hang on how fast the processor was today.
    config = settle(config, run, checkpoint, repeatable=True)
    config = settle_memory(config, run, checkpoint, repeatable=True)
    with preparing(run) as activity, activity(PREPARING, IMPORTING), activity.quiet():
        use_threads(config.run.num_threads)
        from tba.launch.inline import run_inline

    return run_inline(config, run, checkpoint, wants_to_stop, shown=shown)
