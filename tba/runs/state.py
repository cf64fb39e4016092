"""Whether a run is going on, and how it ended: by its lock and its files, without asking any process.

The lock says whether somebody holds the run now. If nobody does, the run has finished if its last step was made and
its summary says so. The Trainer writes the summary when it ends in order, so a run whose summary does not reach its
last record has crashed: it was killed, the machine went down, or an error ended it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tba.runs.callbacks import was_stopped_early
from tba.runs.folder import is_held
from tba.runs.records import newest_step
from tba.runs.run_config import CONFIG, num_replayed_steps
from tba.runs.summary import SUMMARY
from tba.types import TbaError


class State(StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    """It has made its last step."""
    STOPPED_EARLY = "stopped early"
    """A callback or `evaluation.patience` ended it, in order."""
    STOPPED = "stopped"
    """Somebody stopped it in order, with a checkpoint, and it can be resumed."""
    CRASHED = "crashed"
    """It ended without a word."""


@dataclass(frozen=True)
class Standing:
    """Where a run stands."""

    state: State
    step: int
    num_steps: int | None
    """None if the settings do not say."""
    seconds: float
    """From its start to its last record, without the time between a stop and a resume."""
    summary: Mapping[str, Any] | None
    """What it said of itself in the end; None if there is no such summary, or if it is older than the last step."""


def standing_of(run: Path) -> Standing:
    """Reads the end of the metrics and the summary only, so hundreds of runs take no time."""
    try:
        num_steps = num_replayed_steps(run) or _num_steps(read_settings(run), run)
    except TbaError:
        num_steps = None
    was_held = is_held(run)
    step, seconds = newest_step(run)
    summary = _summary(run, step)
    if was_held:
        state = State.RUNNING
    elif summary is None:
        state = State.CRASHED
    elif num_steps is None or step >= num_steps:
        state = State.FINISHED
    else:
        state = State.STOPPED_EARLY if was_stopped_early(run) else State.STOPPED
    return Standing(state, step, num_steps, seconds, summary)


def check_is_run(run: Path) -> None:
    """TbaError if the settings in the folder are not those of a run."""
    _num_steps(read_settings(run), run)


def read_settings(run: Path) -> dict[str, Any]:
    """The settings of a run as its file has them, unchecked: other versions may have made it. TbaError if there are
    none."""
    try:
        return tomllib.loads((run / CONFIG).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise TbaError(f"{run} is not a run: there is no {CONFIG} in it") from None
    except OSError as error:
        raise TbaError(f"cannot read {run / CONFIG}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TbaError(f"{run / CONFIG} is damaged ({error})") from None


def _num_steps(settings: Mapping[str, Any], run: Path) -> int:
    try:
        return int(settings["trainer"]["num_steps"])
    except (KeyError, TypeError, ValueError):
        raise TbaError(f"{run / CONFIG} does not have the settings of a run: trainer.num_steps is missing") from None


def _summary(run: Path, step: int) -> dict[str, Any] | None:
    try:
        summary = json.loads((run / SUMMARY).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) and summary.get("steps") == step else None
