"""Every setting, its meaning and its check. Imports no torch, so the command line answers at once.

Settings are checked and never edited: a derived value is a property, and an error names the setting and the
remedy. Layers, later over earlier: the defaults here, a TOML file, dotted overrides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import reduce
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from tba import objectives, tasks
from tba.config import text as config_text
from tba.config.faults import in_one_line
from tba.config.section import Device, Section
from tba.objectives import ObjectiveConfig, carried_over
from tba.tasks import TaskConfig, has_data, task_shorthand
from tba.types import TbaError


def _comma_list(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


StringList = Annotated[tuple[str, ...], BeforeValidator(_comma_list)]
FloatList = Annotated[tuple[float, ...], BeforeValidator(_comma_list)]
DeviceList = Annotated[tuple[Device, ...], BeforeValidator(_comma_list)]


class RunConfig(Section):
    """Where the run lives and how its processes are started."""

    name: str = ""
    """Name of the run's folder, which is made in `run.root`. If empty, it is the task's name and the time of the
    start."""
    root: str = "runs"
    """The folder in which the folders of all runs are."""
    seed: int = Field(0, ge=0)
    """Seed of the order of prompts, of sampled responses and of draws from the buffer. Each Searcher adds its own
    index, so that no two explore alike."""
    launcher: Literal["local", "inline"] = "local"
    """`local` runs a process for each Searcher (rollout worker) and one for the Trainer. `inline` runs all of them in
    turn in one process, and gives the same numbers each time."""
    num_threads: int = Field(0, ge=0)
    """Compute threads of each process. With 0, the cores are shared out over the processes that work at the same
    time."""
    max_restarts: int = Field(10, ge=0)
    """How many times Searchers that died are started again before the run gives up."""
    stuck_seconds: float = Field(600.0, ge=0)
    """Seconds without a sign of life after which a process that is still there counts as stuck. A stuck Searcher is
    killed and replaced, as one that died; a stuck Trainer is killed and the run ends. Every pass through a model, and
    every wait for rewards or for another process, is a sign of life; give more seconds than the longest pass takes.
    With 0, no process is ever taken for stuck."""
    end_seconds: float = Field(3600.0, gt=0)
    """Seconds that Searchers have, after the last training step, to evaluate the last weights and to end. Those that
    need longer are killed, and their last evaluation is missing: `tba eval` makes up for it."""
    display: Literal["auto", "live", "plain", "none"] = "auto"
    """What is shown while the run goes on: a `live` panel, which needs a terminal; `plain` lines; or `none`. `auto`
    shows the panel where there is a terminal, and lines elsewhere."""


class ModelConfig(Section):
    """The model that is trained. `model = "path"` is short for `model.path = "path"`."""

    path: str
    """A causal language model: a Hugging Face directory or id. `arithmetic` is the small model that comes with tba."""
    device: Device = "auto"
    """Device that the model is trained on: `cpu`, `cuda` or `cuda:1`. `auto` is the first GPU, or the CPU where torch
    finds none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the matrix products in training and in the reference model. Weights, optimizer, norms, attention,
    softmax and log-probabilities are float32 in any case. `auto` measures products of the model's own shapes when a run
    starts, takes `bfloat16` if it is at least 1.15 times as fast as `float32` on this processor, and writes its choice
    into the run's settings. Models with fewer than 10 million weights, and `run.launcher = "inline"`, get `float32`."""
    attention: Literal["auto", "shared", "padded"] = "auto"
    """`shared` computes each prompt once per group; `padded` is the plain forward, for models with unusual
    attention; `auto` takes `shared` where the architecture allows it."""
    gradient_checkpointing: bool = False
    """Keep only the input of each layer and recompute all else in the backward pass: a tenth of the memory of
    activations, about a third more time. Without it a pass keeps the outputs of matrix products and attention too."""
    logit_chunk_tokens: int = Field(256, ge=1)
    """Tokens whose vocabulary logits are held at once when log-probabilities are computed."""
    lora_rank: int = Field(0, ge=0)
    """Rank of the LoRA adapters that are trained in place of the weights, which needs the `lora` extra (peft). With 0,
    the weights themselves are trained."""
    lora_alpha: float = Field(16.0, gt=0)
    """Adapters are scaled by `model.lora_alpha` divided by `model.lora_rank`."""
    lora_targets: StringList = ("all-linear",)
    """Layers that get adapters, by the end of their names, such as `q_proj,v_proj`. `all-linear` means every linear
    layer but the output head."""
    trust_remote_code: bool = False
    """Whether to run Python code that comes with the model. If false, a model that needs its own code is refused."""

    @property
    def in_bfloat16(self) -> bool:
        """Whether products are in bfloat16. Where no launcher has settled `auto`, they are not."""
        return self.precision == "bfloat16"


def _model_shorthand(value: Any) -> Any:
    return {"path": value} if isinstance(value, str) else value


def _reward_shorthand(value: Any) -> Any:
    return {"functions": value.split(",")} if isinstance(value, str) else value


class RewardConfig(Section):
    """How responses are scored. `reward = "module:function"` is short for `reward.functions`."""

    functions: StringList = ()
    """Reward functions, each as `module:function` or `file.py:function`. If none is named, the reward is
    `reward.model`, or else the task's own."""
    model: str | None = None
    """A reward model: a Hugging Face directory or id of a sequence classifier with one output. Its score of prompt and
    response is the reward. If `reward.functions` are named too, the sum of all is."""
    weights: FloatList = ()
    """Weights of `reward.functions`, and after them of `reward.model`, in the sum that is the reward. If empty, each is
    1."""
    normalize_mean: float = 0.0
    """Subtracted from every score of `reward.model`. The mean score of reference responses is a usual choice: these
    then score 0 on average."""
    normalize_std: float = Field(1.0, gt=0)
    """Divides every score of `reward.model`, after `reward.normalize_mean` is subtracted from it."""
    no_eos_score: float | None = None
    """Score of `reward.model` for a response that the length limit cut off. It replaces the normalised score; the paper
    has −1. If empty, such a response is scored like any other."""
    model_batch_size: int = Field(16, ge=1)
    """Responses that `reward.model` scores in one batch."""
    model_max_tokens: int | None = Field(None, ge=1)
    """Longest input of `reward.model`, in tokens. Longer ones lose their beginning and are counted. If empty, it is the
    model's context length."""
    model_device: Device = "auto"
    """Device of the reward model, such as `cuda:1`. `auto` is that of the Searcher's engine."""
    is_random: bool = False
    """Whether the reward gives equal responses different numbers, as a judge that is sampled does. A run whose draws
    prefer high rewards then says that high rewards are partly luck, and which setting to change. If false, a run says
    so when it has seen two equal responses with different rewards."""
    timeout_seconds: float = Field(30.0, gt=0)
    """Time limit for scoring one group of responses. A group that takes longer is dropped. A reward function that is
    not `async def` is then ended by killing its process."""
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
    """Sampling temperature. Log-probabilities of the policy and of the reference are computed at this temperature
    too."""
    max_new_tokens: int = Field(256, ge=1)
    """Length limit of a response, its end-of-sequence token included."""
    device: DeviceList = ("auto",)
    """Device that responses are generated on: one for all Searchers, or a list with one for each (`cuda:1,cuda:2`).
    `auto` deals Searchers out over the GPUs other than that of `model.device`, shares it where there is no other, and
    is the CPU where torch finds none."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the engine keeps its weights. `bfloat16` takes half the memory, computes in bfloat16, and is a
    little off-policy, which the objective accepts; evaluation then uses these weights too. What is trained and
    published stays float32."""
    precision: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    """Precision of the matrix products that Searchers generate with. `bfloat16` and `int8` multiply by a rounded copy
    of the weights, which is made at each publication; responses are then a little off-policy, which the objective
    accepts, and the metric `engine_gap/mean` says how much. `auto` measures products of the model's own shapes when a
    run starts, takes what is clearly fastest on this processor, and writes its choice into the run's settings. Models
    with fewer than 10 million weights, and `run.launcher = "inline"`, get `float32`. Evaluation uses the weights as
    published. A CPU has kernels for it; a Searcher on a GPU uses the weights as `engine.dtype` keeps them."""
    stop_text: str = ""
    """A text, such as a line break, that ends a response: the first token that contains it is the last one. If empty,
    only the end-of-sequence token and the length limit end a response."""
    in_flight_updates: bool = False
    """Whether Searchers load newer weights in the middle of responses. Responses that are being generated then go on
    with the newer weights, and the cached keys and values of the older weights are kept. If false, Searchers begin no
    new response until those that are being generated are finished, so that each response is of one version."""

    @property
    def settled_precision(self) -> Literal["float32", "bfloat16", "int8"]:
        """The precision of products. Where no launcher has settled `auto`, it is float32."""
        return "float32" if self.precision == "auto" else self.precision


class ReferenceConfig(Section):
    """The model that the policy is held to: the one that training starts from, frozen. With adapters
    (`model.lora_rank`) it is the policy's own model with adapters switched off, and takes no memory."""

    where: Literal["searcher", "learner"] = "searcher"
    """Which process has the reference model. With `searcher`, every Searcher has a copy and computes the reference's
    log-probabilities of its own responses while these are scored. With `learner`, the Trainer's process has the only
    copy, and computes them once for each trajectory when it is merged (put into the buffer). Searchers then take less
    memory, and the Trainer spends time on it."""
    device: Device = "auto"
    """Device of the reference model. `auto` is that of the Searcher's engine, or that of the Learner if
    `reference.where = "learner"`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which the reference keeps its weights. `bfloat16` takes half the memory, and its log-probabilities are
    that much coarser."""


class SearcherConfig(Section):
    """The processes that explore."""

    num_searchers: int = Field(1, ge=1)
    """How many Searchers run."""
    num_responses: int = Field(16, ge=2)
    """Responses generated for each prompt (S in the paper)."""
    prompts_per_batch: int = Field(8, ge=1)
    """Bounds what a Searcher generates at a time: `searcher.prompts_per_batch` times `searcher.num_responses`
    responses. A response that ends makes room for the next, of the same prompt or of another."""
    prompts: Literal["shuffle", "solve_rate"] = "shuffle"
    """Which prompts Searchers explore. `shuffle` walks through all of them in a random order, then through all of them
    again. `solve_rate` prefers prompts whose responses get different rewards, as those that are solved sometimes, and
    comes back to them. Prompts that were not tried yet count as the best, and every prompt keeps a share."""
    temperature_fraction: float = Field(0.0, ge=0, le=1)
    """Share of prompts, from 0 to 1, whose responses are sampled for exploration at a random temperature between
    `searcher.temperature_low` and `searcher.temperature_high`. Responses to all other prompts are sampled at
    `engine.temperature`, and training always uses log-probabilities at `engine.temperature`."""
    temperature_low: float = Field(0.7, gt=0)
    """Lowest temperature of responses that are sampled for exploration; see `searcher.temperature_fraction`."""
    temperature_high: float = Field(2.0, gt=0)
    """Highest temperature of responses that are sampled for exploration; see `searcher.temperature_fraction`."""
    skip_equal_rewards: bool = False
    """Whether to leave out groups whose rewards are all equal. They teach the policy nothing but to stay close to the
    reference, and where right responses are rare most groups are like this. Of `searcher.prompts_per_batch` groups in a
    row at least one is kept, so that a run always moves on."""

    @model_validator(mode="after")
    def _check(self) -> SearcherConfig:
        if self.temperature_low > self.temperature_high:
            raise ValueError("searcher.temperature_low is above searcher.temperature_high: exchange them")
        return self


class BufferConfig(Section):
    """The replay buffer: what it keeps, and how groups are drawn from it (most-on-policy sampling, MOP)."""

    capacity: int = Field(200_000, ge=1)
    """Most trajectories that the buffer keeps. When there are more, the oldest are dropped."""
    capacity_per_prompt: int = Field(100, ge=1)
    """Most trajectories that the buffer keeps for one prompt. When there are more, the oldest are dropped."""
    recent_fraction: float = Field(0.5, ge=0, le=1)
    """Probability that a group is drawn from the newest data only (m in the paper). The newest data are the latest
    merges, as few of them as hold `trainer.num_groups` groups."""
    uniform_fraction: float = Field(0.5, ge=0, le=1)
    """Weight of the uniform distribution when responses are drawn from the whole buffer (u). The rest of the weight is
    on a softmax of their rewards."""
    inverse_temperature: float = Field(1.0, ge=0)
    """Inverse temperature of the softmax over rewards by which responses are drawn from the whole buffer; 0 is
    uniform."""

    @property
    def tilt(self) -> float:
        """By how much rewards tilt draws: the inverse temperature, or 0 if no draw goes by it."""
        return 0.0 if self.recent_fraction == 1 or self.uniform_fraction == 1 else self.inverse_temperature


class TrainerConfig(Section):
    """The process that learns."""

    num_steps: int = Field(200, ge=1)
    """Optimizer steps of the run."""
    num_groups: int = Field(8, ge=1)
    """Groups drawn from the buffer for each optimizer step (B in the paper)."""
    group_size: int = Field(16, ge=2)
    """Trajectories of each group that is drawn from the buffer (K in the paper)."""
    sync_period: int = Field(2, ge=1)
    """Optimizer steps between two syncs (k in the paper). At a sync the Trainer publishes its weights and merges (puts
    into the buffer) the groups that Searchers have made."""
    synchronous: bool = False
    """Whether every step waits for groups that were made with the current weights. Searchers and the Trainer then take
    turns, as in on-policy training."""
    max_staleness: int | None = Field(None, ge=0)
    """Largest age of training data, in steps. Older trajectories are dropped from the buffer, and the Trainer waits
    when too few are left. If empty, there is no limit."""
    initial_groups: int | None = Field(None, ge=1)
    """Groups that are collected before the first step. If empty, `trainer.num_groups` are."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = "constant"
    """How the learning rate changes after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which the learning rate rises linearly from 0 to its peak."""
    decay_steps: int | None = Field(None, ge=1)
    """Steps over which the schedule `warmup_stable_decay` decays at its end. If empty, a fifth of
    `trainer.num_steps`."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW weight decay."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW first-moment decay."""
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    """AdamW second-moment decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""
    micro_batch_tokens: int = Field(2_048, ge=1)
    """Tokens in one forward and backward pass, which decide how much memory it takes: about 1 MB for each token with a
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
    """Evaluation on held-out prompts, which a Searcher does while the Trainer goes on."""

    period: int = Field(50, ge=0)
    """Steps between evaluations. The first and the last weights are always evaluated as well. With 0 nothing is
    evaluated."""
    num_prompts: int = Field(256, ge=1)
    """Most held-out prompts that an evaluation uses."""
    num_samples: int = Field(0, ge=0)
    """Responses sampled for each held-out prompt to estimate pass@k. With 0, only greedy pass@1 is measured."""
    success_reward: float = 0.5
    """A response counts as correct if its reward is above this."""
    prompts_per_batch: int = Field(64, ge=1)
    """Held-out prompts that responses are generated for at the same time."""
    gold_model: str | None = None
    """Task `tldr`: the reward model that judges responses against reference summaries. It should not be one that the
    policy was trained with."""
    gold_device: Device = "auto"
    """Device of `evaluation.gold_model`. `auto` is that of the engine."""
    reference_model: str | None = None
    """Task `tldr`, in `tba eval`: the model that KL is measured to. If empty, it is the model that the run of a
    checkpoint started from, and for other models no KL is reported. In training it is always the starting model."""
    num_attacks: int = Field(1024, ge=2)
    """Task `redteam`: attacks that are sampled for an evaluation, over all attacker prompts together."""
    embedding_model: str = ""
    """Task `redteam`: the sentence-embedding model, a directory or id, that the diversity of attacks is measured with.
    The paper's, `all-MiniLM-L6-v2`, also comes with the `embeddings` extra. If empty, diversity is not measured."""
    embedding_device: Device = "auto"
    """Device of `evaluation.embedding_model`. `auto` is that of the engine."""


class CheckpointConfig(Section):
    """Checkpoints: when they are written, and how many are kept."""

    period: int = Field(100, ge=0)
    """Steps between checkpoints. The end of a run always writes one; with 0, only the end does."""
    keep_last: int = Field(2, ge=1)
    """Number of checkpoints that are kept. Older ones are removed once a newer one is complete."""


class MetricsConfig(Section):
    """Where the metrics of a run go besides `metrics.jsonl`, which is always written."""

    tensorboard: bool = True
    """Whether to write TensorBoard events into the folder of the run."""
    wandb: bool = False
    """Whether to send the metrics to Weights & Biases, which needs the `wandb` extra."""
    trackio: bool = False
    """Whether to send the metrics to trackio, which needs the `trackio` extra."""


class Config(Section):
    """The whole tree."""

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
        if self.model.lora_rank and reference.dtype != engine.dtype:
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
    """Read the layers. Without a file, a run that names no model of its own starts from the embedded default."""
    if path is not None:
        return parse_config(config_text.read_toml(Path(path)), overrides)
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
