"""`tba.train`: what `tba train` does, from Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from tba.config.settings import Config, embedded_settings, parse_config
from tba.launch import launch
from tba.launch.preflight import check
from tba.launch.processes import importable_main, stopped_at_once
from tba.launch.shown import Shown
from tba.learn.checkpoint import Checkpoint, find_checkpoint, run_to_resume
from tba.rewards.given import give, keep_sources
from tba.runs.activity import forget_activities
from tba.runs.callbacks import Callbacks, check_callbacks
from tba.runs.display import Display
from tba.runs.folder import locked, new_run
from tba.runs.metrics import read_metrics
from tba.runs.model_of import with_models_of_runs
from tba.runs.patience import Patience
from tba.runs.result import Result
from tba.runs.run_config import read_run_config, resumed_config, write_run_config
from tba.tasks import OWN_DATA
from tba.tasks.prepared import prepared_anew
from tba.types import TbaError

Reward = str | Callable[..., Any]
Rows = str | Path | Iterable[Mapping[str, Any]]


def train(
    config: Config | None = None,
    *,
    model: str | Path | None = None,
    dataset: Rows | None = None,
    reward: Reward | Sequence[Reward] | Mapping[str, Any] | None = None,
    reward_weights: Sequence[float] = (),
    overwrite: bool = False,
    callbacks: Sequence[Any] = (),
    **sections: Mapping[str, Any],
) -> Result:
    """Train a model. Give a `Config`, or a model, a dataset and a reward function; sections as keywords refine it.

    `dataset` is a path, a hub id, or rows (a list of dicts or a Hugging Face `Dataset`); `reward` a function with TRL's
    signature, its `module:function`, or the section's settings (`{"model": PATH_OR_ID}`). A function of a notebook, or
    a lambda, is sent to the reward process with what it uses. In a script call this under
    `if __name__ == "__main__":`, because the processes of the run import your module.

    `callbacks` are functions of (step, metrics), or objects with `on_step` or `on_evaluation`, which are called in this
    process for each step and each evaluation. One that returns "stop", or raises `tba.StopRun`, ends the run in order.
    """
    if config is None:
        config = parse_config(*_settings(model, dataset, reward, reward_weights, sections))
    elif model is not None or reward is not None or dataset is not None or sections:
        raise TbaError("give either a Config or the separate arguments: a Config already says it all")
    return start(config, overwrite=overwrite, callbacks=callbacks)


def start(config: Config, *, overwrite: bool = False, callbacks: Sequence[Any] = ()) -> Result:
    check_callbacks(callbacks)
    config, chosen = with_models_of_runs(config)
    with _shown(config) as display:
        notes = [*chosen, *_check(config, display)]
        with new_run(config, overwrite=overwrite) as run:
            return _launch(config, run, None, notes, callbacks, display)


def resume(
    path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    reward: Reward | Sequence[Reward] | None = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Continue a run from its newest checkpoint, or from the checkpoint named. `callbacks` are those of `train`.

    A `reward` that stood in a notebook has to be given again: a run keeps names of functions, and no code. Overrides
    are written into the run once nothing speaks against going on; a resume that is refused changes nothing.
    """
    changes = dict(overrides or {})
    if reward is not None:
        changes["reward"] = {**changes.get("reward", {}), "functions": _reward_names(reward)}
    with locked(run_to_resume(Path(path))):
        run, checkpoint = find_checkpoint(Path(path))
        config = resumed_config(run, changes)
        if checkpoint.step >= config.trainer.num_steps:
            raise TbaError(
                f"{run} has made all its {config.trainer.num_steps} steps: raise --trainer.num-steps to go on with it"
            )
        _check_patience(config, run, checkpoint)
        with _shown(config, checkpoint) as display:
            notes = _check(config, display)
            if config != read_run_config(run):
                write_run_config(run, config)
            return _launch(config, run, checkpoint, notes, callbacks, display)


def _check_patience(config: Config, run: Path, checkpoint: Checkpoint) -> None:
    """A run that had lost its patience would end at its next evaluation."""
    if not config.evaluation.patience:
        return
    patience = Patience(config.evaluation.patience, config.task.headline.metric_of)
    patience.take_all(r for r in read_metrics(run) if r["step"] <= checkpoint.step)
    if patience.has_ended:
        raise TbaError(f"{run} has ended: {patience.message}, or with 0 for no limit")


@contextmanager
def _shown(config: Config, checkpoint: Checkpoint | None = None) -> Iterator[Display]:
    """What a run needs around it, from the first look at its input on. Ctrl-C ends it at once, until processes are
    there that can save something."""
    with importable_main(), Display(config, checkpoint=checkpoint) as display, stopped_at_once(display.stopping):
        yield display


def _check(config: Config, display: Display) -> list[str]:
    with display.doing("checking the input"):
        return check(config)


def _launch(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    notes: Iterable[str],
    callbacks: Sequence[Any],
    display: Display,
) -> Result:
    """The caller holds the run's lock. `notes` are shown first."""
    keep_sources(run, config.reward.functions)
    forget_activities(run)
    watching = Callbacks(run, callbacks)
    with prepared_anew(run):
        display.follow(run)
        for note in notes:
            display.tell(note)
        shown = Shown(display.started, display.tell, display.stopping)
        try:
            finished = launch(config, run, checkpoint, watching.poll, shown=shown)
        except KeyboardInterrupt:
            finished = False
        watching.poll()  # the last evaluation
        display.conclude(finished)
    if watching.error is not None:
        raise watching.error
    return Result(run, finished)


def _settings(
    model: str | Path | None,
    dataset: Rows | None,
    reward: Reward | Sequence[Reward] | Mapping[str, Any] | None,
    reward_weights: Sequence[float],
    sections: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """The keyword arguments as two layers of settings. Without a model of one's own: the embedded default."""
    given: dict[str, Any] = {} if model is not None else embedded_settings()
    if model is not None:
        given["model"] = str(model)
    if dataset is not None:
        root = Path(str(sections.get("run", {}).get("root", "runs")))
        given["task"] = {"kind": OWN_DATA, "data": _data_path(dataset, root)}
    if isinstance(reward, Mapping):
        given["reward"] = dict(reward)
    elif reward is not None:
        given["reward"] = {"functions": _reward_names(reward), "weights": list(reward_weights)}
    return given, sections


def _data_path(dataset: Rows, root: Path) -> str:
    """A path as it is; rows are written beside the runs, under a name made of their content, to be found on resume."""
    if isinstance(dataset, (str, Path)):
        return str(dataset)
    lines = "".join(json.dumps(dict(row), ensure_ascii=False, default=str) + "\n" for row in dataset)
    path = root / "data" / f"{xxhash.xxh3_64_hexdigest(lines.encode())}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines, "utf-8")
    return str(path)


def _reward_names(reward: Reward | Sequence[Reward]) -> list[str]:
    """How other processes find the functions: by import, or else by value."""
    several = [reward] if isinstance(reward, str) or callable(reward) else reward
    if not isinstance(several, Sequence) or not all(isinstance(one, str) or callable(one) for one in several):
        raise TbaError(f"reward = {reward!r}: give a function, its module:function, or a list of these")
    paths = [one if isinstance(one, str) else _import_path(one) for one in several]
    given = give(one for one, path in zip(several, paths, strict=True) if path is None and not isinstance(one, str))
    return [next(given) if path is None else path for path in paths]


def _import_path(reward: Callable[..., Any]) -> str | None:
    """By module, or by file if it stands in the script that is running; None if that would not find the function."""
    name, module = getattr(reward, "__qualname__", ""), inspect.getmodule(reward)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if module is None or found is not reward:
        return None
    if module.__name__ != "__main__":
        return f"{module.__name__}:{name}"
    file = getattr(module, "__file__", None)
    return f"{file}:{name}" if file is not None and Path(file).is_file() else None
