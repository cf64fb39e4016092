"""Everything that can be wrong with a run's input, looked at before any process starts. Loads no torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tba.config import EMBEDDED_MODEL, Config
from tba.rewards.functions import check_importable
from tba.rewards.reward_model import check_scorer
from tba.tasks import load_task
from tba.types import TbaError


def check(config: Config, *, to_train: bool = True) -> None:
    """Raise TbaError, one line that names what to change, for the first thing that cannot work."""
    check_model(config.model.path, config.model.trust_remote_code)
    if config.task.kind == "tldr":
        _check_preference(config, to_train)
    task = load_task(config.task, lambda content: ("", (0,)))  # rows are read and checked, not encoded
    if to_train and not task.train:
        raise TbaError("the task has no training prompts: give more rows (task.data) or hold out fewer (task.num_eval)")
    for function in config.reward.functions:
        check_importable(function)
    if config.reward.model is not None:
        check_scorer(config.reward.model)
    for name in ("wandb", "trackio"):
        if getattr(config.metrics, name) and find_spec(name) is None:
            raise TbaError(f"metrics.{name} needs the package: pip install 'tba[{name}]'")


def _check_preference(config: Config, to_train: bool) -> None:
    if to_train and not config.reward.is_named:
        raise TbaError("reward is missing: name a reward model with --reward.model PATH_OR_ID")
    if config.evaluation.gold_model is not None:
        check_scorer(config.evaluation.gold_model)
    if not to_train and config.evaluation.reference_model is not None:
        check_model(config.evaluation.reference_model, config.model.trust_remote_code)


def check_model(path: str, trust_remote_code: bool) -> None:
    """A folder must hold a model; anything else must be a hub id that transformers can find."""
    if path == EMBEDDED_MODEL or (Path(path) / "config.json").is_file():
        return
    if Path(path).exists():
        raise TbaError(f"model {path!r} is no Hugging Face model folder: there is no config.json in it")
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise TbaError(f"there is no model at {path!r}: check the path")
    from transformers import AutoConfig

    try:
        AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TbaError(f"model {path!r} is neither a folder here nor on the hub: {reason}") from None
