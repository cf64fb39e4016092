"""The whole tree of settings, and its layers. Imports no torch, so the command line answers at once.

Settings are checked and never edited: a derived value is a property, and an error names the setting and the
remedy. Layers, later over earlier: the defaults here, a TOML file, dotted overrides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError, model_validator

from tba import objectives, tasks
from tba.config import text as config_text
from tba.config.faults import in_one_line
from tba.config.model import EngineConfig, ModelConfig, ReferenceConfig
from tba.config.ready import read_settings
from tba.config.run import MetricsConfig, RunConfig
from tba.config.search import EvaluationConfig, RewardConfig, SearcherConfig
from tba.config.section import Section
from tba.config.training import BufferConfig, CheckpointConfig, TrainerConfig
from tba.objectives import ObjectiveConfig, carried_over
from tba.tasks import TaskConfig, has_data, task_shorthand
from tba.types import TbaError


def _model_shorthand(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _reward_shorthand(value: Any) -> Any:
    return {"functions": value.split(",")} if isinstance(value, str) else value


class Config(Section):
    """All settings of a run, section by section. A TOML file and the command line have the same sections."""

    run: RunConfig = RunConfig()
    model: Annotated[ModelConfig, BeforeValidator(_model_shorthand)]
    task: TaskConfig = tasks.default_settings()
    reward: Annotated[RewardConfig, BeforeValidator(_reward_shorthand)] = RewardConfig()
    engine: EngineConfig = EngineConfig()
    reference: ReferenceConfig = ReferenceConfig()
    searcher: SearcherConfig = SearcherConfig()
    buffer: BufferConfig = BufferConfig()
    objective: ObjectiveConfig = objectives.default_settings()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()

    @model_validator(mode="after")
    def _check(self) -> Config:
        responses, group = self.searcher.num_responses, self.trainer.group_size
        if group > responses:
            raise ValueError(
                f"trainer.group_size = {group} is more than searcher.num_responses = {responses}: "
                "draw fewer or generate more"
            )
        if self.buffer.capacity_per_prompt < group:
            raise ValueError(
                f"buffer.capacity_per_prompt = {self.buffer.capacity_per_prompt} is less than "
                f"trainer.group_size = {group}: a group would never fit"
            )
        if self.buffer.capacity < self.trainer.num_groups * responses:
            raise ValueError(
                f"buffer.capacity = {self.buffer.capacity} is less than trainer.num_groups x searcher.num_responses "
                f"= {self.trainer.num_groups * responses}: one batch would not fit"
            )
        self._check_devices()
        self.task.check(self)
        return self

    def _check_devices(self) -> None:
        engine, reference, num_searchers = self.engine, self.reference, self.searcher.num_searchers
        if len(engine.device) not in (1, num_searchers):
            raise ValueError(
                f"engine.device names {len(engine.device)} devices for searcher.num_searchers = {num_searchers}: "
                "name one for all, or one for each"
            )
        if engine.precision == "int8" and any(device.startswith("cuda") for device in engine.device):
            raise ValueError("engine.precision = 'int8' is for CPUs: set engine.device = 'cpu', or leave one out")
        if engine.precision == "int8" and engine.dtype != "float32":
            raise ValueError("engine.precision = 'int8' needs engine.dtype = 'float32': choose one of the two")
        if self.model.lora_rank and reference.device != "auto":
            raise ValueError(
                "reference.device cannot be chosen with model.lora_rank: the reference is the engine's own base model"
            )
        if self.model.lora_rank and not reference.moves and reference.dtype != engine.dtype:
            raise ValueError(
                f"reference.dtype = {reference.dtype!r} differs from engine.dtype = {engine.dtype!r}: with "
                "model.lora_rank they are one model, so set both alike"
            )

    @classmethod
    def embedded(cls, **overrides: Any) -> Config:
        """The demo: the embedded model on the arithmetic task. Keywords are sections, as mappings."""
        return parse_config(embedded_settings(), overrides)


def embedded_settings() -> dict[str, Any]:
    return tomllib.loads(resources.files("tba").joinpath("embedded.toml").read_text("utf-8"))


def load_config(path: str | Path | None, overrides: Mapping[str, Any]) -> Config:
    """Read the layers. `path` names a file or a ready configuration.

    Without one, a run that names no model of its own starts from the embedded default.
    """
    if path is not None:
        return parse_config(read_settings(path), overrides)
    model = overrides.get("model")
    if isinstance(model, str) or (isinstance(model, Mapping) and "path" in model):
        return parse_config({}, overrides)
    if isinstance(overrides.get("task"), Mapping) and "data" in overrides["task"]:
        raise TbaError("model is missing: task.data needs a model of yours, name it with --model PATH_OR_ID")
    return parse_config(embedded_settings(), overrides)


def parse_config(base: Mapping[str, Any], *layers: Mapping[str, Any]) -> Config:
    """Merge and check, later layers over earlier ones; every fault becomes one line that names the setting."""
    try:
        return Config.model_validate(reduce(_merge, layers, base))
    except ValidationError as error:
        from tba.config.help import setting_names

        raise TbaError(in_one_line(error, setting_names(), "tba config")) from None


def to_toml(config: Config) -> str:
    """The resolved settings as TOML: enough to run it again."""
    return config_text.to_toml(config.model_dump(mode="json"))


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        if key == "task" and isinstance(value, (str, Mapping)):
            # Another kind of task shares no settings with the one it replaces.
            kind = task_shorthand(old)["kind"] if isinstance(old, (str, Mapping)) else None
            # Data alone means the user's own task, unless the task so far is one that reads data.
            if isinstance(value, str) or ("data" in value and not has_data(str(kind))):
                value = task_shorthand(value)
            if isinstance(old, Mapping) and "kind" in value and value["kind"] != kind:
                old = None
        if key == "objective" and isinstance(old, Mapping) and isinstance(value, Mapping) and "kind" in value:
            old = carried_over(old, value["kind"])
        if isinstance(old, str) and isinstance(value, Mapping):
            old = config_text.expand(key, old)
        if isinstance(old, Mapping) and isinstance(value, str) and key in ("task", "model", "reward"):
            value = config_text.expand(key, value)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
