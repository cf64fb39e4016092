"""`tba.train`: what `tba train` does, from Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from tba.config.settings import Config, embedded_settings, parse_config
from tba.launch import launch
from tba.launch.preflight import check
from tba.learn.checkpoint import Checkpoint, find_checkpoint, list_checkpoints, run_to_resume
from tba.runs.best import best_model
from tba.runs.callbacks import STOPPED_EARLY, Callbacks, check_callbacks
from tba.runs.display import Display
from tba.runs.folder import locked, new_run
from tba.runs.metrics import read_metrics
from tba.runs.patience import Patience
from tba.runs.run_config import read_run_config, resumed_config, write_run_config
from tba.runs.summary import SUMMARY
from tba.tasks import OWN_DATA
from tba.tasks.prepared import prepared_anew
from tba.types import TbaError

Reward = str | Callable[..., Any]
Rows = str | Path | Iterable[Mapping[str, Any]]


class Result:
    """A finished or stopped run: its folder, its summary, its newest model."""

    def __init__(self, run: Path, finished: bool) -> None:
        self.run = run
        self.finished = finished

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last step because a callback asked for it, or by `evaluation.patience`."""
        ends = [r.get("event") for r in read_metrics(self.run) if r.get("event") in (STOPPED_EARLY, "resumed")]
        return not self.finished and ends[-1:] == [STOPPED_EARLY]

    @property
    def summary(self) -> dict[str, Any]:
        path = self.run / SUMMARY
        summary: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return summary

    @property
    def model(self) -> Path | None:
        """The newest checkpoint's model: a Hugging Face directory."""
        found = list_checkpoints(self.run)
        return found[-1].model if found else None

    @property
    def best_model(self) -> Path | None:
        """The model with the best evaluation, a Hugging Face directory. None if no version that was evaluated is better
        than the model that training started from."""
        return best_model(self.run)


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

    `dataset` is a path, a hub id, or rows (a list of dicts or a Hugging Face `Dataset`); `reward` an importable
    function with TRL's signature, its `module:function`, or the section's settings (`{"model": PATH_OR_ID}`). Call it
    under `if __name__ == "__main__":`, because the processes of the run import your module.

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
    check(config)
    with new_run(config, overwrite=overwrite) as run:
        return _launch(config, run, None, callbacks)


def resume(path: str | Path, overrides: Mapping[str, Any] | None = None, *, callbacks: Sequence[Any] = ()) -> Result:
    """Continue a run from its newest checkpoint, or from the checkpoint named. `callbacks` are those of `train`.

    Overrides are written into the run once nothing speaks against going on; a resume that is refused changes nothing.
    """
    with locked(run_to_resume(Path(path))):
        run, checkpoint = find_checkpoint(Path(path))
        config = resumed_config(run, overrides or {})
        if checkpoint.step >= config.trainer.num_steps:
            raise TbaError(
                f"{run} has made all its {config.trainer.num_steps} steps: raise --trainer.num-steps to go on with it"
            )
        _check_patience(config, run, checkpoint)
        check(config)
        if config != read_run_config(run):
            write_run_config(run, config)
        return _launch(config, run, checkpoint, callbacks)


def _check_patience(config: Config, run: Path, checkpoint: Checkpoint) -> None:
    """A run that had lost its patience would end at its next evaluation."""
    if not config.evaluation.patience:
        return
    patience = Patience(config.evaluation.patience, config.task.headline.metric_of)
    patience.take_all(r for r in read_metrics(run) if r["step"] <= checkpoint.step)
    if patience.has_ended:
        raise TbaError(f"{run} has ended: {patience.message}, or with 0 for no limit")


def _launch(config: Config, run: Path, checkpoint: Checkpoint | None, callbacks: Sequence[Any] = ()) -> Result:
    """The caller holds the run's lock."""
    watching = Callbacks(run, callbacks)
    with prepared_anew(run), Display(config, run) as display:
        finished = launch(config, run, checkpoint, display.tell, watching.poll)
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
        several = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
        given["reward"] = {"functions": [_import_path(r) for r in several], "weights": list(reward_weights)}
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


def _import_path(reward: Reward) -> str:
    """How another process finds the function: by module, or by file if it stands in the script that is running."""
    if isinstance(reward, str):
        return reward
    name = getattr(reward, "__qualname__", "")
    module = inspect.getmodule(reward)
    if not name or module is None or "<" in name:
        raise TbaError(f"reward {reward!r} cannot be imported by other processes: define it at the top of a module")
    if module.__name__ != "__main__":
        return f"{module.__name__}:{name}"
    if not getattr(module, "__file__", None):
        raise TbaError(f"reward {name} stands in an interactive session: put it into a file and import it from there")
    return f"{module.__file__}:{name}"
