"""Everything that can be wrong with a run's input, looked at before any process starts. Loads no torch."""

from __future__ import annotations

import multiprocessing
from importlib.util import find_spec

from tba.config.ready import check_earlier_steps
from tba.config.settings import Config
from tba.extras import install_hint
from tba.launch.gpus import count_gpus
from tba.launch.prompt_checks import check_chat_template, check_room
from tba.policy.names import EMBEDDED_MODEL, model_directory, read_chat_template, read_model_config
from tba.policy.placement import check_device, named_devices
from tba.rewards.dry_call import check_by_calling
from tba.rewards.functions import check_column_names, check_columns, check_importable
from tba.rewards.reward_model import check_reward_model
from tba.tasks.base import not_encoded
from tba.types import TbaError


def check(config: Config, *, to_train: bool = True) -> list[str]:
    """Raise TbaError, one line that names what to change, for the first thing that cannot work.

    What the user should know of what can work is returned, a line for each thing.
    """
    _check_not_within_import()
    check_earlier_steps(config.model_dump(mode="json"))
    model = config.model.path
    model_config = read_model_config(model_directory(model), "model", config.model.trust_remote_code)
    if config.model.chat_template is not None:
        read_chat_template(config.model.chat_template)
    if to_train:
        config.objective.check()
    if config.model.lora_rank and find_spec("peft") is None:
        raise TbaError(f"model.lora_rank needs the package peft: {install_hint('lora')}")
    _check_devices(config, to_train)
    for other in config.task.models(config.evaluation, to_train=to_train):
        if other.is_reward_model:
            check_reward_model(other.path)
        else:
            check_model(other.path, config.model.trust_remote_code, setting=other.setting)
    task = config.task.load(not_encoded)
    if to_train and task.default_reward is None and not config.reward.is_named:
        raise TbaError(
            "reward is missing: the task has none of its own, so name yours with --reward module:function, or a reward "
            "model with --reward.model PATH_OR_ID"
        )
    if to_train and not task.train:
        raise TbaError("the task has no training prompts: give more rows (task.data) or hold out fewer (task.num_eval)")
    problems = (*task.train, *task.held_out)
    rows = [problem.columns for problem in problems]
    check_column_names(rows)
    for function in config.reward.functions:
        check_importable(function)
        check_columns(function, rows)
    if config.reward.model is not None:
        check_reward_model(config.reward.model)
    for name in ("wandb", "trackio"):
        if getattr(config.metrics, name) and find_spec(name) is None:
            raise TbaError(f"metrics.{name} needs the package {name}: {install_hint(name)}")
    if config.model.chat_template is None:
        check_chat_template(model, problems)
    check_room(model, model_config, config.engine.max_new_tokens, task.train or task.held_out)
    if config.reward.functions and config.reward.dry_call and problems:
        check_by_calling(
            config.reward.functions,
            problems[0].content,
            problems[0].columns,
            timeout_seconds=config.reward.timeout_seconds,
            start_seconds=config.reward.start_seconds,
            num_steps=config.trainer.num_steps,
        )
    return list(task.notes)


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
