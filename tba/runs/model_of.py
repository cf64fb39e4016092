"""Which model a path means: a run stands for its newest checkpoint, and a checkpoint for the model in it.

This is the one place of that rule. Commands say in a line which model they have taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tba.config.settings import Config
from tba.learn.checkpoint import list_checkpoints
from tba.runs.best import best_model, read_best
from tba.runs.run_config import CONFIG
from tba.types import TbaError


@dataclass(frozen=True)
class ModelOf:
    """What a path was found to mean."""

    path: str
    """The folder of the model, or its id on a hub, as it was given."""
    note: str = ""
    """A sentence for the user, if another path was given; empty otherwise."""


def model_of(source: str, *, best: bool = False) -> ModelOf:
    """`source` is a run, a checkpoint, or any model. `best` takes a run's best model in place of its newest checkpoint.
    TbaError if the run has none."""
    path = Path(source)
    is_run = (path / CONFIG).is_file()
    if best and not is_run:
        raise TbaError(f"--best needs a run, and {source} is not one: there is no {CONFIG} in it")
    if best:
        return ModelOf(str(found := _best(path)), f"{source} is a run: its best model is taken, {found}")
    if is_run:
        checkpoints = list_checkpoints(path)
        if not checkpoints:
            raise TbaError(f"{path} has no checkpoint yet: wait for the first (checkpoint.period), or train it")
        found = checkpoints[-1].model
        return ModelOf(str(found), f"{source} is a run: its newest checkpoint is taken, {found}")
    if (path / "model" / "config.json").is_file():
        return ModelOf(str(path / "model"), f"{source} is a checkpoint: its model is taken, {path / 'model'}")
    return ModelOf(source)


def with_models_of_runs(config: Config, *, to_train: bool = True) -> tuple[Config, list[str]]:
    """The settings with the models that they mean, and what to tell of it. A run that is named in them may go on and
    have newer checkpoints later: what is taken now is what is written down."""
    named = [("model.path", config.model.path)]
    if config.evaluation.reference_model is not None:
        named.append(("evaluation.reference_model", config.evaluation.reference_model))
    others = config.task.models(config.evaluation, to_train=to_train)
    named += [(model.setting, model.path) for model in others if not model.is_reward_model]
    notes = []
    for setting, path in dict(named).items():
        found = model_of(path)
        if found.note:
            notes.append(f"{setting}: {found.note}")
            section, _, key = setting.partition(".")
            changed = getattr(config, section).model_copy(update={key: found.path})
            config = config.model_copy(update={section: changed})
    return config, notes


def _best(run: Path) -> Path:
    found = best_model(run)
    if found is None:
        why = "no version was better than the starting model" if read_best(run) else "nothing was evaluated"
        raise TbaError(f"{run} has no best model, because {why}: leave --best out for the newest checkpoint")
    return found
