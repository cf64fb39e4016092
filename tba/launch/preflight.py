"""Everything that can be wrong with a run's input, looked at before any process starts. Loads no torch."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec
from pathlib import Path

from tba.config import EMBEDDED_MODEL, Config
from tba.config_tasks import RedteamTaskConfig
from tba.extras import install_hint
from tba.launch.gpus import count_gpus
from tba.model_paths import named_model
from tba.placement import check_device, named_devices
from tba.rewards.functions import check_column_names, check_columns, check_importable
from tba.rewards.reward_model import check_scorer
from tba.tasks import load_task
from tba.types import TbaError


def check(config: Config, *, to_train: bool = True) -> None:
    """Raise TbaError, one line that names what to change, for the first thing that cannot work."""
    _check_not_within_import()
    check_model(config.model.path, config.model.trust_remote_code)
    if to_train:
        config.objective.check()
    if config.model.lora_rank and find_spec("peft") is None:
        raise TbaError(f"model.lora_rank needs the package peft: {install_hint('lora')}")
    _check_devices(config, to_train)
    if config.task.kind == "tldr":
        _check_preference(config, to_train)
    if isinstance(config.task, RedteamTaskConfig):
        check_model(config.task.victim, setting="task.victim")
        check_model(config.task.classifier, setting="task.classifier")
        if config.evaluation.embedding_model:
            check_model(named_model(config.evaluation.embedding_model), setting="evaluation.embedding_model")
    task = load_task(config.task, lambda content: ("", (0,)))  # rows are read and checked, not encoded
    if to_train and not task.train:
        raise TbaError("the task has no training prompts: give more rows (task.data) or hold out fewer (task.num_eval)")
    rows = [problem.columns for problem in (*task.train, *task.held_out)]
    check_column_names(rows)
    for function in config.reward.functions:
        check_importable(function)
        check_columns(function, rows)
    if config.reward.model is not None:
        check_scorer(config.reward.model)
    for name in ("wandb", "trackio"):
        if getattr(config.metrics, name) and find_spec(name) is None:
            raise TbaError(f"metrics.{name} needs the package {name}: {install_hint(name)}")


def _check_not_within_import() -> None:
    """The run's own processes import the script that started it, and must not start it again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise TbaError(
            "a script that starts a run is imported by its processes: start it under `if __name__ == '__main__':`"
        )


def _check_devices(config: Config, to_train: bool) -> None:
    """Only names of GPUs need a look at the machine. Where nothing is trained, `model.device` is nobody's."""
    used = [(setting, device) for setting, device in named_devices(config) if to_train or setting != "model.device"]
    num_gpus = count_gpus() if any(device.startswith("cuda") for _, device in used) else 0
    for setting, device in used:
        check_device(device, setting, num_gpus)


def _check_preference(config: Config, to_train: bool) -> None:
    settings = config.evaluation
    if to_train and not config.reward.is_named:
        raise TbaError("reward is missing: name a reward model with --reward.model PATH_OR_ID")
    if settings.gold_model is not None:
        check_scorer(settings.gold_model)
    if not to_train and settings.reference_model is not None:
        check_model(settings.reference_model, config.model.trust_remote_code, setting="evaluation.reference_model")


def check_model(path: str, trust_remote_code: bool = False, *, setting: str = "model") -> None:
    """A folder must hold a model; anything else must be a hub id that transformers can find."""
    if path == EMBEDDED_MODEL or (Path(path) / "config.json").is_file():
        return
    if Path(path).exists():
        raise TbaError(f"{setting} {path!r} is no Hugging Face model folder: there is no config.json in it")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise TbaError(f"there is no model at {path!r}: check the path of {setting}")
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TbaError(f"{setting} {path!r} is neither a folder here nor on the hub: {reason}") from None
