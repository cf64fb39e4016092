"""The best model of a run: the weights whose evaluation had the highest headline number, kept beside the checkpoints.

`best/step-000140/` holds `model/`, with adapters `adapter/`, and `evaluation.json`, which says what was measured. The
Searcher that evaluates writes it, because it alone still has these weights when their number is known: the Trainer has
moved on. So every evaluated version can be the best one, whether or not a checkpoint was written at its step. There is
nothing to resume from in it. If no version is better than the model that training started from, there is no `model/`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tba.learn.checkpoint import BEST
from tba.types import Version

_EVALUATION = "evaluation.json"


@dataclass(frozen=True)
class Best:
    """What was best so far."""

    metric: str
    value: float
    step: int
    epoch: int = 0

    @property
    def name(self) -> str:
        return f"step-{self.step:06d}"

    @property
    def is_starting_model(self) -> bool:
        return self.step == 0


def read_best(run: Path) -> Best | None:
    """The best of a run so far; None if nothing was evaluated, or `checkpoint.keep_best` is off."""
    found = []
    for path in (run / BEST).glob(f"step-*/{_EVALUATION}"):
        try:
            found.append(Best(**json.loads(path.read_text("utf-8"))))
        except (OSError, ValueError, TypeError):
            continue  # somebody has been at it by hand
    return max(found, key=lambda best: best.value, default=None)


def best_model(run: Path) -> Path | None:
    """The folder of the best model; None if that is the one that training started from, or there is none."""
    best = read_best(run)
    return None if best is None or best.is_starting_model else run / BEST / best.name / "model"


class KeptBest:
    """Keeps the best of a run. Only the process that evaluates has one."""

    def __init__(self, run: Path, metric_of: Callable[[Mapping[str, Any]], str], save: Callable[[Path], None]) -> None:
        """`metric_of` says which number of an evaluation it is judged by, and `save` writes the weights that were
        evaluated last into a folder."""
        self._run = run
        self._metric_of = metric_of
        self._save = save

    def offer(self, version: Version, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keep the weights of an evaluation if none before was as good. What the evaluation's record is to say of it:
        why they could not be saved, if that is so."""
        metric = self._metric_of(values)
        value, before = values.get(metric), read_best(self._run)
        if value is None or value != value:
            return {}
        if before is not None and before.metric == metric and before.value >= value:
            return {}
        try:
            self._keep(Best(metric, float(value), version.step, version.epoch))
        except OSError as error:
            return {"best_not_saved": error.strerror or str(error)}
        return {}

    def _keep(self, best: Best) -> None:
        """Written aside and renamed; the one before is removed afterwards, so that there always is one."""
        folder = self._run / BEST
        partial, target = folder / f".{best.name}.partial", folder / best.name
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed here
        partial.mkdir(parents=True)
        try:
            if not best.is_starting_model:
                self._save(partial)
            (partial / _EVALUATION).write_text(json.dumps(asdict(best)), "utf-8")
            shutil.rmtree(target, ignore_errors=True)  # of an epoch that was abandoned
            os.replace(partial, target)
        except OSError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        for other in folder.iterdir():
            if other != target:
                shutil.rmtree(other, ignore_errors=True)
