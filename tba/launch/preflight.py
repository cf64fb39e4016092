"""Everything that can be wrong with a run's input, looked at before any process starts. Loads no torch."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec

from tba.config.settings import Config
from tba.extras import install_hint
from tba.launch.gpus import count_gpus
from tba.policy.names import EMBEDDED_MODEL, read_chat_template, read_model_config
from tba.policy.placement import check_device, named_devices
from tba.rewards.functions import check_column_names, check_columns, check_importable
from tba.rewards.reward_model import check_reward_model
from tba.tasks.base import not_encoded
from tba.types import TbaError


def check(config: Config, *, to_train: bool = True) -> None:
    """Raise TbaError, one line that names what to change, for the first thing that cannot work."""
    _check_not_within_import()
    check_model(config.model.path, config.model.trust_remote_code)
    if config.model.chat_template is not None:
        read_chat_template(config.model.chat_template)
    if to_train:
        config.objective.check()
    if config.model.lora_rank and find_spec("peft") is None:
        raise TbaError(f"model.lora_rank needs the package peft: {install_hint('lora')}")
    _check_devices(config, to_train)
    for model in config.task.models(config.evaluation, to_train=to_train):
        if model.is_reward_model:
            check_reward_model(model.path)
        else:
            check_model(model.path, config.model.trust_remote_code, setting=model.setting)
    task = config.task.load(not_encoded)
    if to_train and task.default_reward is None and not config.reward.is_named:
        raise TbaError(
            "reward is missing: the task has none of its own, so name yours with --reward module:function, or a reward "
            "model with --reward.model PATH_OR_ID"
        )
    if to_train and not task.train:
        raise TbaError("the task has no training prompts: give more rows (task.data) or hold out fewer (task.num_eval)")
    rows = [problem.columns for problem in (*task.train, *task.held_out)]
    check_column_names(rows)
    for function in config.reward.functions:
        check_importable(function)
        check_columns(function, rows)
    if config.reward.model is not None:
        check_reward_model(config.reward.model)
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


def check_model(path: str, trust_remote_code: bool = False, *, setting: str = "model") -> None:
    """A folder must hold a model; anything else must be a hub id that transformers can find."""
    if path != EMBEDDED_MODEL:
        read_model_config(path, setting, trust_remote_code)
