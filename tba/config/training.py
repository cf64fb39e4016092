"""Settings of the Trainer: its buffer, its steps and its checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tba.config.section import AutoCount, Section

USUAL_PASS = 2_048
"""Tokens of a pass that suit most machines."""


class BufferConfig(Section):
    """The replay buffer: what it keeps, and how groups are drawn from it (most-on-policy sampling, MOP)."""

    capacity: int = Field(200_000, ge=1)
    """Most trajectories that the buffer keeps. When there are more, the oldest are dropped."""
    capacity_per_prompt: int = Field(100, ge=1)
    """Most trajectories that the buffer keeps for one prompt. When there are more, the oldest are dropped."""
    recent_fraction: float = Field(0.5, ge=0, le=1)
    """Probability that a group is drawn from the newest data only (m in the paper). The newest data are the most recent
    merges that together have at least `trainer.num_groups` groups."""
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
    """The Trainer (the learner): the process that makes optimizer steps."""

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
    early_syncs: bool = False
    """Whether there are more syncs at the beginning of a run: after steps 1, 2, 4, 8 and so on, until there is one
    every `trainer.sync_period` steps. If false, all steps up to the first sync are made on data of the first
    weights."""
    staleness: int | None = Field(None, ge=0)
    """Age of all training data, in steps, if it is to be exact, as in studies. Every trajectory is then drawn at that
    age, or, in the first steps, at the age of the first weights. Each version of the weights makes the groups of one
    step, which are used once; the first version makes those of `trainer.staleness` + 1 steps.
    `trainer.sync_period`, `trainer.early_syncs`, `trainer.initial_groups` and the section `buffer` have no effect then.
    If empty, data are drawn from the buffer at whatever age they have."""
    initial_groups: int | None = Field(None, ge=1)
    """Groups that are collected before the first step. If empty, `trainer.num_groups` are."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = "constant"
    """How the learning rate changes after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps before the learning rate has its peak. It rises linearly: of W such steps the first has 1/(W + 1) of the
    peak and the last W/(W + 1)."""
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
    micro_batch_tokens: AutoCount = "auto"
    """Tokens in one forward and backward pass, which decide how much memory it takes: about 1 MB for each token with a
    model of 135M parameters. A group that is larger is computed in parts, each with some of its responses; that takes
    one more forward pass of the group, and changes no result. Passes of the reference model in Searchers have the same
    limit. `auto` takes a whole group, or as many tokens as the free memory has room for, when a run starts, and writes
    its choice into the run's settings. With `run.launcher = "inline"`, and where there is a GPU, `auto` is 2048."""

    @property
    def pass_tokens(self) -> int:
        """Tokens in a pass. Where no launcher has settled `auto`, they are as many as usual."""
        return USUAL_PASS if self.micro_batch_tokens == "auto" else self.micro_batch_tokens

    @property
    def staleness_limit(self) -> int | None:
        if self.staleness is not None:
            return self.staleness
        return 0 if self.synchronous else self.max_staleness

    @property
    def has_budgets(self) -> bool:
        """Whether Searchers make a certain number of groups of each version of the weights, then wait for the next."""
        return self.synchronous or self.staleness is not None

    @property
    def takes_turns(self) -> bool:
        """Whether Searchers and the Trainer never work at the same time."""
        return self.staleness_limit == 0 and self.has_budgets

    def syncs_after(self, step: int) -> bool:
        """Whether there is a sync once this step is made; so the weights of this step are published."""
        is_early = self.early_syncs and step < self.sync_period and step.bit_count() == 1
        return self.staleness is not None or is_early or step % self.sync_period == 0

    def steps_to_sync(self, step: int) -> int:
        """Steps from a sync after this step to the next."""
        if self.early_syncs and step < self.sync_period:
            return min(1 << step.bit_length(), self.sync_period) - step
        return self.sync_period

    @property
    def first_fill(self) -> int:
        return self.initial_groups or self.num_groups

    @model_validator(mode="after")
    def _check(self) -> TrainerConfig:
        if self.synchronous and self.sync_period != 1:
            raise ValueError("trainer.synchronous needs trainer.sync_period = 1: every step waits for its own groups")
        if self.synchronous and self.max_staleness not in (None, 0):
            raise ValueError("trainer.synchronous means staleness 0: leave trainer.max_staleness out")
        if self.staleness is not None and self.synchronous:
            raise ValueError("trainer.synchronous means trainer.staleness = 0: leave one of the two out")
        if self.staleness is not None and self.max_staleness is not None:
            raise ValueError("trainer.staleness is the age of all data: leave trainer.max_staleness out")
        if self.max_staleness is not None and self.max_staleness < self.sync_period - 1:
            raise ValueError(
                f"trainer.max_staleness = {self.max_staleness} cannot be kept with sync_period = {self.sync_period}: "
                f"use at least {self.sync_period - 1}, or a smaller sync_period"
            )
        if self.warmup_steps + (self.decay_steps or 0) > self.num_steps:
            raise ValueError("trainer.warmup_steps + decay_steps exceed trainer.num_steps: shorten one of them")
        return self


class CheckpointConfig(Section):
    """Checkpoints: when they are written, and how many are kept."""

    period: int = Field(100, ge=0)
    """Steps between checkpoints. The end of a run always writes one; with 0, only the end does."""
    keep_last: int = Field(2, ge=1)
    """Number of checkpoints that are kept. Older ones are removed once a newer one is complete."""
    keep_interval: int | None = Field(None, ge=1)
    """Steps between checkpoints that are never removed: of every stretch of this many steps the first checkpoint is
    kept, besides the newest `checkpoint.keep_last`. If empty, only those are kept."""
    keep_best: bool = True
    """Whether to keep the model with the best evaluation (`best/` in the folder of the run), judged by the number that
    the task is judged by. It is the very version that was evaluated, and need not be one with a checkpoint."""
