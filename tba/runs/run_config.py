"""The settings of a run: `config.toml` in its folder. Written whole or not at all, and checked when they are read.

Settings can name code. What a run of another user names is never run unless the command line names it too.
"""

from __future__ import annotations

import json
import os
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tba.config.help import setting_names
from tba.config.paths import missing_path
from tba.config.search import RewardConfig
from tba.config.section import Section
from tba.config.settings import Config, embedded_settings, parse_config, to_toml
from tba.learn.checkpoint import run_of_model
from tba.objectives import as_recorded
from tba.policy.names import EMBEDDED_MODEL
from tba.policy.placement import is_device
from tba.types import TbaError

CONFIG = "config.toml"
PARTIAL = ".config.toml.partial"
"""The settings while they are being written."""
REPLAY = "replay.json"
"""In the folder of a replay: of which run, and how many steps."""

_RETIRED = ("reward.max_processes", "engine.kind")
"""Settings of earlier versions. The folders of runs may have them, and they no longer mean anything."""
_LATER_SECTIONS = ("reference",)
"""Sections that came after version 0.1.0, whose runs do not have them."""
_LAST_SECTION, _LAST_SETTING = "metrics", "trackio"
"""What every version has written last: a file without it was cut short."""
_FIXED = (
    *("model.path", "model.lora_rank", "model.lora_alpha", "model.lora_targets"),
    *("model.chat_template", "model.chat_template_kwargs"),
    *("objective.kind", "task", "run.name", "run.root", "run.seed", "run.launcher", "engine.temperature"),
)
"""What the data of a run so far rests on."""


def read_run_config(run: Path) -> Config:
    return parse_config(_read(run)[0], {})


def replayed_config(run: Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a run whose training side is repeated, with changes. Rewards are not asked again."""
    settings, is_ours = _read(run)
    config = parse_config(settings, overrides)
    if not is_ours:
        without_rewards = config.model_copy(update={"reward": RewardConfig()})
        _check_code(run, without_rewards, overrides, "name it yourself ({flags}) or copy the run with cp -r")
    return config


def num_replayed_steps(run: Path) -> int | None:
    """How many steps a replay makes; None if the run is not a replay."""
    try:
        return int(json.loads((run / REPLAY).read_text("utf-8"))["num_steps"])
    except FileNotFoundError:
        return None


def write_run_config(run: Path, config: Config) -> None:
    """Put the settings into the folder, in place of those that are there. Only for the holder of the run's lock."""
    try:
        place_config(run, stage_config(run, config))
    except OSError as error:
        raise TbaError(
            f"cannot write {run / CONFIG}: {error.strerror}; check the space and your rights there"
        ) from None


def stage_config(run: Path, config: Config) -> Path:
    """Write the settings beside their place, so that a full disk is noticed while nothing has changed."""
    partial = run / PARTIAL
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(to_toml(config))
        file.flush()
        os.fsync(file.fileno())
    return partial


def place_config(run: Path, staged: Path) -> None:
    os.replace(staged, run / CONFIG)
    descriptor = os.open(run, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def resumed_config(run: Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a run that is resumed, with changes. What the data so far rests on stays fixed."""
    if num_replayed_steps(run) is not None:
        raise TbaError(f"{run} is a replay, which has no Searchers to resume: replay again, or train from its model")
    settings, is_ours = _read(run)
    before, config = parse_config(settings, {}), parse_config(settings, overrides)
    for fixed in _FIXED:
        section, _, key = fixed.partition(".")
        old, new = getattr(before, section), getattr(config, section)
        if (getattr(old, key) != getattr(new, key)) if key else _wherever_it_runs(old) != _wherever_it_runs(new):
            raise TbaError(f"{fixed} cannot change when a run is resumed: start a new run")
    if not is_ours:
        _check_code(run, config, overrides, "name it yourself ({flags}) or copy the run with cp -r")
    return config


def _wherever_it_runs(section: Section) -> dict[str, Any]:
    """Settings but for devices: a run may go on on another machine."""
    return {name: value for name, value in section if not is_device(name)}


def config_for_model(model: str, overrides: Mapping[str, Any]) -> Config:
    """Settings to evaluate a model with: those of the run it is a checkpoint of, or of the demo, or the defaults.

    A run's starting model is what its checkpoints are compared with, unless another is named. If the run is another
    user's and the command line names a task, the reward is that task's own and not the run's.
    """
    run = run_of_model(Path(model))
    if run is None:
        missing = None if Path(model).expanduser().exists() else missing_path(model)
        if missing is not None:
            raise TbaError(f"model {model!r} {missing}")
        if model != EMBEDDED_MODEL and not (_names(overrides, "task", "kind") or _names(overrides, "task", "data")):
            raise TbaError(
                f"the task is missing: {model} is not a checkpoint of a run, so name what to evaluate it on with "
                "--task NAME (`tba tasks` lists the names), or rows of yours with --task.data FILE --reward "
                "module:function"
            )
        base = embedded_settings() if model == EMBEDDED_MODEL else {}
        base["model"] = {**(base["model"] if isinstance(base.get("model"), dict) else {}), "path": model}
        return parse_config(base, overrides)
    settings, is_ours = _read(run)
    trained = parse_config(settings, {})
    base = trained.model_dump(mode="json", exclude_none=True)
    base["evaluation"].setdefault("reference_model", trained.model.path)
    base["model"]["path"] = model
    base["model"].pop("chat_template", None)  # it was saved with the checkpoint
    del base["objective"]  # nothing is trained, and it may name code
    if not is_ours and _names(overrides, "task", "kind") and not _names(overrides, "reward", "functions"):
        del base["reward"]
    config = parse_config(base, overrides)
    if not is_ours:
        _check_code(run, config, overrides, "name it yourself ({flags}), name a --task, or copy the run with cp -r")
    return config


def answers_file(model: str, task: str) -> Path:
    """Where an evaluation's answers go if nobody says: into the run the model is a checkpoint of, or else here.

    Never into a run of another user, who could have put a link there to a file of ours.
    """
    folder, path = run_of_model(Path(model)), Path(model).resolve()
    # A checkpoint's folder has the step in its name, and the model in a folder of its own.
    stem = path.parent.name if path.name == "model" else path.name
    name = f"{stem}-{task}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    if folder is None or not _is_ours(os.stat(folder), os.stat(folder / CONFIG)):
        return Path(f"evaluation-{name}")
    return folder / "evaluations" / name


def _read(run: Path) -> tuple[dict[str, Any], bool]:
    """What the file says, without what is no longer a setting; and whether we wrote it. TbaError unless it is whole."""
    path = run / CONFIG
    try:
        with open(path, "rb") as file:
            is_ours = _is_ours(os.stat(run), os.fstat(file.fileno()))
            settings = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        raise TbaError(f"{run} is not a run: there is no {CONFIG} in it") from None
    except OSError as error:
        raise TbaError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # not TOML, or not text
        raise TbaError(f"{path} is damaged ({error}): restore it from a copy, or start a new run") from None
    missing = [name for name in Config.model_fields if name not in (*settings, *_LATER_SECTIONS)]
    last = settings.get(_LAST_SECTION)
    if not missing and isinstance(last, dict) and _LAST_SETTING not in last:
        missing = [f"{_LAST_SECTION}.{_LAST_SETTING}"]
    if missing:
        raise TbaError(f"{path} is not the whole settings of a run: {missing[0]} is missing; restore it from a copy")
    known = setting_names()
    for section, key in (name.split(".") for name in _RETIRED if name not in known):
        if isinstance(settings[section], dict):
            settings[section].pop(key, None)
    if isinstance(settings["objective"], dict):
        settings["objective"] = as_recorded(settings["objective"])
    return settings, is_ours


def _check_code(run: Path, config: Config, overrides: Mapping[str, Any], remedy: str) -> None:
    """Refuse code that a run of another user names: it would run with our rights. What we name ourselves is ours."""
    code = {}
    if config.reward.functions and not _names(overrides, "reward", "functions"):
        code["reward.functions"] = "--reward module:function"
    if config.objective.is_code and not _names(overrides, "objective", "kind"):
        code["objective.kind"] = "--objective.kind module:Class"
    if config.model.trust_remote_code and not _names(overrides, "model", "trust_remote_code"):
        code["model.trust_remote_code"] = "--model.trust-remote-code true"
    if code:
        raise TbaError(
            f"{run} belongs to another user, and its {' and '.join(code)} would run that user's code as you: if you "
            f"trust it, {remedy.format(flags=' '.join(code.values()))}"
        )


def _is_ours(folder: os.stat_result, config: os.stat_result) -> bool:
    """Whether the folder and its settings belong to whoever runs this. Root is a user like any other."""
    return folder.st_uid == config.st_uid == os.geteuid()


def _names(overrides: Mapping[str, Any], section: str, key: str) -> bool:
    """Whether the command line itself gives this setting, maybe by its shorthand."""
    given = overrides.get(section)
    shorthand = isinstance(given, str) and (section, key) in (("reward", "functions"), ("task", "kind"))
    return shorthand or (isinstance(given, Mapping) and key in given)
