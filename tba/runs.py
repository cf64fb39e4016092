"""The folder of a run: made once, never written over by accident."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tba.config import EMBEDDED_MODEL, Config, embedded_settings, parse_config, to_toml
from tba.types import TbaError

CONFIG = "config.toml"
REPLAY = "replay.json"
"""In the folder of a replay: of which run, and how many steps."""


def create_run(config: Config, *, overwrite: bool) -> Path:
    """Make the folder and write the resolved settings into it. An existing run is refused, or replaced if asked."""
    name = config.run.name or f"{config.task.kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    if Path(name).name != name or name in (".", ".."):
        raise TbaError(f"run.name = {name!r} must be a plain folder name; use run.root for the path")
    run = Path(config.run.root) / name
    if run.exists():
        if not overwrite:
            raise TbaError(f"{run} exists already: add --resume {run} to continue it, --overwrite, or another run.name")
        if not (run / CONFIG).is_file() and any(run.iterdir()):
            raise TbaError(f"{run} is not a run, so --overwrite does not remove it: choose another run.name")
        shutil.rmtree(run)
    try:
        run.mkdir(parents=True)
        (run / CONFIG).write_text(to_toml(config), "utf-8")
    except OSError as error:
        raise TbaError(f"cannot make the run folder {run}: {error.strerror}; choose another run.root") from None
    return run


@contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run for this process: two at once would write over each other. The lock goes with its holder."""
    with open(run / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TbaError(f"{run} is being run by another process: see tba status {run}") from None
        yield


def read_run_config(run: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """The settings of a run, with others laid over them. Nothing is written."""
    return parse_config(_settings(run), overrides or {})


def num_replayed_steps(run: Path) -> int | None:
    """How many steps a replay makes; None if the run is not a replay."""
    try:
        return int(json.loads((run / REPLAY).read_text("utf-8"))["num_steps"])
    except FileNotFoundError:
        return None


def reconfigure_run(run: Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a run that is resumed, with changes written back. What the data so far rests on stays fixed."""
    if num_replayed_steps(run) is not None:
        raise TbaError(f"{run} is a replay, which has no Searchers to resume: replay again, or train from its model")
    config = read_run_config(run, overrides)
    before = read_run_config(run)
    fixed_settings = (
        "model.path",
        "model.lora_rank",
        "model.lora_alpha",
        "model.lora_targets",
        "objective.kind",
        "task",
        "run.name",
        "run.root",
        "run.seed",
        "run.launcher",
        "engine.temperature",
    )
    for fixed in fixed_settings:
        section, _, key = fixed.partition(".")
        old, new = getattr(before, section), getattr(config, section)
        if (getattr(old, key) != getattr(new, key)) if key else old != new:
            raise TbaError(f"{fixed} cannot change when a run is resumed: start a new run")
    if config != before:
        (run / CONFIG).write_text(to_toml(config), "utf-8")
    return config


def config_for_model(model: str, overrides: Mapping[str, Any]) -> Config:
    """Settings to evaluate a model with: those of the run it is a checkpoint of, or of the demo, or the defaults.

    A run's starting model is what its checkpoints are compared with, unless another is named.
    """
    run = _run_of(model)
    if run is not None:
        base = _settings(run)
        base["evaluation"] = {"reference_model": base["model"]["path"], **base.get("evaluation", {})}
    else:
        base = embedded_settings() if model == EMBEDDED_MODEL else {}
    base["model"] = {**(base["model"] if isinstance(base.get("model"), dict) else {}), "path": model}
    return parse_config(base, overrides)


def answers_file(model: str, task: str) -> Path:
    """Where an evaluation's answers go if nobody says: into the run the model is a checkpoint of, or else here."""
    folder, path = _run_of(model), Path(model).resolve()
    # A checkpoint's folder has the step in its name, and the model in a folder of its own.
    stem = path.parent.name if path.name == "model" else path.name
    name = f"{stem}-{task}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    return folder / "evaluations" / name if folder is not None else Path(f"evaluation-{name}")


def _run_of(model: str) -> Path | None:
    return next((parent for parent in Path(model).resolve().parents if (parent / CONFIG).is_file()), None)


def _settings(run: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((run / CONFIG).read_text("utf-8"))
    except FileNotFoundError:
        raise TbaError(f"{run} is not a run: there is no {CONFIG} in it") from None
