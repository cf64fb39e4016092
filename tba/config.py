"""Every setting, its meaning and its check. Imports no torch, so the command line answers at once.

Settings are checked and never edited: a derived value is a property, and an error names the setting and the
remedy. Layers, later over earlier: the defaults here, a TOML file, dotted overrides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tba import config_text
from tba.config_faults import in_one_line
from tba.config_section import Section
from tba.config_tasks import KINDS_WITH_DATA, ArithmeticTaskConfig, TaskConfig, task_shorthand
from tba.objectives import ObjectiveConfig, carried_over, default_settings
from tba.types import TbaError

EMBEDDED_MODEL = "arithmetic"
"""`model = "arithmetic"` names the small warm-started policy that ships with the package."""


def _comma_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


StringList = Annotated[tuple[str, ...], BeforeValidator(_comma_list)]
FloatList = Annotated[tuple[float, ...], BeforeValidator(_comma_list)]


class RunConfig(Section):
    """Where the run lives and how its processes are started."""

    name: str = ""
    """Folder of the run under `run.root`; empty: the task's name and the time of the start."""
    root: str = "runs"
    """Folder that holds the runs."""
    seed: int = Field(0, ge=0)
    """Seeds prompts, sampling and draws. Each Searcher derives its own generator from it and its index."""
    launcher: Literal["local", "inline"] = "local"
    """`local`: one process per Searcher and one for the Trainer. `inline`: all in turn in one process, repeatable."""
    num_threads: int = Field(0, ge=0)
    """Compute threads per process; 0: the cores shared out over the processes that work at the same time."""
    max_restarts: int = Field(10, ge=0)
    """How often a Searcher that died is started again before the run gives up."""
    display: Literal["auto", "live", "plain", "none"] = "auto"
    """`live` needs a terminal; `auto` falls back to plain lines where there is none."""


class ModelConfig(Section):
    """The model that is trained. `model = "path"` is short for `model.path = "path"`."""

    path: str
    """A Hugging Face directory or id of a causal LM; `arithmetic` is the embedded one."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the matrix products. The weights and the optimizer stay float32 (autocast)."""
    attention: Literal["auto", "shared", "padded"] = "auto"
    """`shared` computes each prompt once per group; `padded` is the plain forward, for models with unusual
    attention; `auto` takes `shared` where the architecture allows it."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    logit_chunk_tokens: int = Field(1024, ge=1)
    """Tokens whose vocabulary logits are held at once when log-probabilities are computed."""
    lora_rank: int = Field(0, ge=0)
    """Train adapters of this rank instead of the weights (peft, the `lora` extra); 0: train the weights."""
    lora_alpha: float = Field(16.0, gt=0)
    """Adapters are scaled by this over the rank."""
    lora_targets: StringList = ("all-linear",)
    """Layers that get adapters, by the end of their name (`q_proj,v_proj`); `all-linear`: all but the output head."""
    trust_remote_code: bool = False
    """Allow the model directory to bring its own Python code. Off: such a model is refused."""


def _model_shorthand(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _reward_shorthand(value: Any) -> Any:
    return {"functions": value.split(",")} if isinstance(value, str) else value


class RewardConfig(Section):
    """How responses are scored. `reward = "module:function"` is short for `reward.functions`."""

    functions: StringList = ()
    """`module:function` or `file.py:function`, one or several; empty: `model`, or else the task's own reward."""
    model: str | None = None
    """A reward model: a Hugging Face directory or id of a sequence classifier with one output. Its score of prompt and
    response is the reward, or is added to those of `functions`."""
    weights: FloatList = ()
    """Weight of each function in the sum, the model's last; empty: 1 each."""
    normalize_mean: float = 0.0
    """Taken from the model's scores: their mean over reference responses makes those 0."""
    normalize_std: float = Field(1.0, gt=0)
    """What the model's scores are divided by after that."""
    no_eos_score: float | None = None
    """The model's score for a response that the length limit cut, in place of its own, after normalisation; −1 in the
    paper. Empty: cut responses are scored like others."""
    model_batch_size: int = Field(16, ge=1)
    """Responses the model scores at a time."""
    model_max_tokens: int | None = Field(None, ge=1)
    """Longer inputs of the model lose their beginning, and are counted; empty: the model's context."""
    model_device: str = "cpu"
    """Device of the model, such as `cuda:1`."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Time limit for scoring one group. Past it the group's responses are dropped; a function that is not `async` is
    ended by killing its process."""
    start_seconds: float = Field(120.0, gt=0)
    """Time limit for a reward process to import its functions and load its models."""
    num_processes: int = Field(1, ge=1)
    """Reward processes of each Searcher. A process scores one group at a time, or several if functions are `async def`,
    which is the way to wait for a judge, a sandbox or a network. Raise it when a run says that rewards hold a Searcher
    up. Each process holds a copy of the reward model, if there is one."""

    @property
    def is_named(self) -> bool:
        return bool(self.functions) or self.model is not None

    @model_validator(mode="after")
    def _check(self) -> RewardConfig:
        count = len(self.functions) + (self.model is not None)
        if self.weights and len(self.weights) != count:
            what = "reward.functions" + (" and reward.model" if self.model is not None else "")
            raise ValueError(
                f"reward.weights has {len(self.weights)} numbers for {count} {what}: give one weight for each function"
            )
        return self


class EngineConfig(Section):
    """How responses are generated."""

    temperature: float = Field(1.0, gt=0)
    """Sampling temperature. Log-probabilities of policy and reference are taken at the same temperature."""
    max_new_tokens: int = Field(256, ge=1)
    """Length limit of a response, its end-of-sequence token included."""
    precision: Literal["float32", "int8"] = "float32"
    """Precision of the copy of the weights that Searchers sample from. `int8` is about 1.4 times as fast on models of
    100 million parameters and more, and a little off-policy, which the objective accepts. Evaluation uses the weights
    as published."""
    stop_text: str = ""
    """A response also ends with the first token that contains this, such as a line break; empty: it does not."""
    in_flight_updates: bool = False
    """Searchers take newer weights between two decoding steps, and responses that are under way go on with them; their
    cached keys and values are kept. Off: nothing new begins until the responses under way are finished, so that every
    response is of one version."""


class SearcherConfig(Section):
    """The processes that explore."""

    num_searchers: int = Field(1, ge=1)
    """How many Searchers run."""
    num_responses: int = Field(16, ge=2)
    """S: responses generated for a prompt."""
    prompts_per_batch: int = Field(8, ge=1)
    """Bounds what a Searcher generates at a time: at most this times `num_responses` responses are under way. A
    response that ends makes room for the next, of the same prompt or of another."""
    temperature_fraction: float = Field(0.0, ge=0, le=1)
    """Share of prompts whose responses are sampled at a temperature drawn anew from `temperature_low` to
    `temperature_high`, for exploration; the others, and all log-probabilities that are trained, keep
    `engine.temperature`."""
    temperature_low: float = Field(0.7, gt=0)
    """Lowest temperature of the prompts that `temperature_fraction` samples at another one."""
    temperature_high: float = Field(2.0, gt=0)
    """Highest temperature of the prompts that `temperature_fraction` samples at another one."""
    skip_equal_rewards: bool = False
    """Do not train on groups whose rewards are all equal: beside the distance to the reference they teach nothing, and
    where right responses are rare they are most groups. At least one of `prompts_per_batch` groups in a row is handed
    up, so that a run always moves on."""

    @model_validator(mode="after")
    def _check(self) -> SearcherConfig:
        if self.temperature_low > self.temperature_high:
            raise ValueError("searcher.temperature_low is above searcher.temperature_high: exchange them")
        return self


class BufferConfig(Section):
    """What is kept, and how it is drawn (MOP)."""

    capacity: int = Field(200_000, ge=1)
    """Trajectories kept in all; the oldest leave first."""
    capacity_per_prompt: int = Field(100, ge=1)
    """Trajectories kept for one prompt; the oldest leave first."""
    recent_fraction: float = Field(0.5, ge=0, le=1)
    """m: the probability that a group is drawn from the newest data: the latest merges, as few as hold `num_groups`."""
    uniform_fraction: float = Field(0.5, ge=0, le=1)
    """u: in draws from the whole buffer, the weight of uniform choice; the rest is a softmax of reward."""
    inverse_temperature: float = Field(1.0, ge=0)
    """Sharpness of that softmax; 0 is uniform."""


class TrainerConfig(Section):
    """The process that learns."""

    num_steps: int = Field(200, ge=1)
    """Optimizer steps of the run."""
    num_groups: int = Field(8, ge=1)
    """B: groups drawn for a step."""
    group_size: int = Field(16, ge=2)
    """K: trajectories in a drawn group."""
    sync_period: int = Field(2, ge=1)
    """k: steps between two syncs; at each the weights are published and the Searchers' groups merged."""
    synchronous: bool = False
    """Wait each step for groups of the current weights, with Searchers and Trainer taking turns."""
    max_staleness: int | None = Field(None, ge=0)
    """Trajectories older than this many steps leave the buffer and the Trainer waits for newer ones; empty: none do."""
    initial_groups: int | None = Field(None, ge=1)
    """Groups to collect before the first step; empty: `num_groups`."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = "constant"
    """Shape of the learning rate after warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up."""
    decay_steps: int | None = Field(None, ge=1)
    """Steps of decay at the end of `warmup_stable_decay`; empty: a fifth of `num_steps`."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW first-moment decay."""
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    """AdamW second-moment decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    micro_batch_tokens: int = Field(2_048, ge=1)
    """Tokens in one forward and backward pass, which decide how much memory it takes: about 2 MB for each token with a
    model of 135M parameters. A group that is larger is computed in parts, each with some of its responses; that takes
    one more forward pass of the group, and changes no result. Passes of the reference model in Searchers have the same
    limit."""

    @property
    def staleness_limit(self) -> int | None:
        return 0 if self.synchronous else self.max_staleness

    @property
    def first_fill(self) -> int:
        return self.initial_groups or self.num_groups

    @model_validator(mode="after")
    def _check(self) -> TrainerConfig:
        if self.synchronous and self.sync_period != 1:
            raise ValueError("trainer.synchronous needs trainer.sync_period = 1: every step waits for its own groups")
        if self.synchronous and self.max_staleness not in (None, 0):
            raise ValueError("trainer.synchronous means staleness 0: leave trainer.max_staleness out")
        if self.max_staleness is not None and self.max_staleness < self.sync_period - 1:
            raise ValueError(
                f"trainer.max_staleness = {self.max_staleness} cannot be kept with sync_period = {self.sync_period}: "
                f"use at least {self.sync_period - 1}, or a smaller sync_period"
            )
        if self.warmup_steps + (self.decay_steps or 0) > self.num_steps:
            raise ValueError("trainer.warmup_steps + decay_steps exceed trainer.num_steps: shorten one of them")
        return self


class EvaluationConfig(Section):
    """Scores on held-out prompts, made by a Searcher while the Trainer goes on."""

    period: int = Field(50, ge=0)
    """Steps between evaluations; the first and the last weights are always evaluated; 0 turns all of it off."""
    num_prompts: int = Field(256, ge=1)
    """Held-out prompts used, at most."""
    num_samples: int = Field(0, ge=0)
    """Sampled responses a prompt for pass@k during training; 0: greedy pass@1 only."""
    success_reward: float = 0.5
    """A response counts as correct if its reward is above this."""
    prompts_per_batch: int = Field(64, ge=1)
    """Prompts generated for at a time."""
    gold_model: str | None = None
    """Task `tldr`: the reward model that judges responses against reference summaries, never one trained against."""
    reference_model: str | None = None
    """For `tba eval` of task `tldr`: the model to measure KL to. Empty: for a checkpoint, the model its run started
    from; else no KL is reported. In training it is always the starting model."""
    num_attacks: int = Field(1024, ge=2)
    """Task `redteam`: attacks sampled for an evaluation, over all attacker prompts."""
    embedding_model: str = ""
    """Task `redteam`: sentence-embedding model that diversity is measured with, a directory or id;
    `all-MiniLM-L6-v2`, the paper's, is also found in the package of the `embeddings` extra. Empty: not measured."""


class CheckpointConfig(Section):
    """What is saved, and when."""

    period: int = Field(100, ge=0)
    """Steps between checkpoints; the end of a run always makes one; 0: only that one."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints kept; older ones are removed once a newer one is complete."""


class MetricsConfig(Section):
    """Where numbers go besides `metrics.jsonl`, which is always written."""

    tensorboard: bool = True
    """Write TensorBoard events into the run."""
    wandb: bool = False
    """Send to Weights & Biases; needs the `wandb` extra."""
    trackio: bool = False
    """Send to trackio; needs the `trackio` extra."""


class Config(Section):
    """The whole tree."""

    run: RunConfig = RunConfig()
    model: Annotated[ModelConfig, BeforeValidator(_model_shorthand)]
    task: TaskConfig = ArithmeticTaskConfig()
    reward: Annotated[RewardConfig, BeforeValidator(_reward_shorthand)] = RewardConfig()
    engine: EngineConfig = EngineConfig()
    searcher: SearcherConfig = SearcherConfig()
    buffer: BufferConfig = BufferConfig()
    objective: ObjectiveConfig = default_settings()
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
        if self.engine.precision == "int8" and self.model.precision != "float32":
            raise ValueError("engine.precision = 'int8' needs model.precision = 'float32': choose one of the two")
        if self.task.kind == "custom" and not self.reward.is_named:
            raise ValueError("reward is missing: name yours with --reward module:function")
        if self.task.kind == "tldr" and not self.reward.is_named and self.evaluation.gold_model is None:
            raise ValueError("reward is missing: name a reward model with --reward.model PATH_OR_ID")
        return self

    @classmethod
    def embedded(cls, **overrides: Any) -> Config:
        """The demo: the embedded model on the arithmetic task. Keywords are sections, as mappings."""
        return parse_config(embedded_settings(), overrides)


def embedded_settings() -> dict[str, Any]:
    return tomllib.loads(resources.files("tba").joinpath("embedded.toml").read_text("utf-8"))


def load_config(path: str | Path | None, overrides: Mapping[str, Any]) -> Config:
    """Read the layers. Without a file, a run that names no model of its own starts from the embedded default."""
    if path is not None:
        return parse_config(config_text.read_toml(Path(path)), overrides)
    model = overrides.get("model")
    if isinstance(model, str) or (isinstance(model, Mapping) and "path" in model):
        return parse_config({}, overrides)
    if isinstance(overrides.get("task"), Mapping) and "data" in overrides["task"]:
        raise TbaError("model is missing: task.data needs a model of yours, name it with --model PATH_OR_ID")
    return parse_config(embedded_settings(), overrides)


def parse_config(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> Config:
    """Merge and check; every fault becomes one line that names the setting."""
    try:
        return Config.model_validate(_merge(base, overrides))
    except ValidationError as error:
        from tba.config_help import setting_names

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
            if isinstance(value, str) or ("data" in value and kind not in KINDS_WITH_DATA):
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
