"""Trainers of a tiny model, and made-up groups for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from tba.activity import Activity
from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.buffer.replay import ReplayBuffer
from tba.channels.inline import InlineGroups, InlineWeights
from tba.config import BufferConfig, CheckpointConfig, TrainerConfig
from tba.epochs import Epochs
from tba.learn.learner import LocalLearner
from tba.metrics import Metrics
from tba.objectives import ObjectiveConfig
from tba.objectives.trajectory_balance import Settings
from tba.optimization import Optimization
from tba.policy import Policy, load_model, load_tokenizer
from tba.testing import make_group
from tba.trainer import Trainer
from tba.types import Group, Version

GROUP_SIZE = 3


def learner_in(
    run: Path, folder: str, *, attention: str = "auto", objective: ObjectiveConfig | None = None, **settings: Any
) -> LocalLearner:
    config = TrainerConfig(learning_rate=1e-2, **settings)
    policy = Policy(load_model(folder, attention=attention), temperature=0.8)
    made = (objective or Settings(beta=0.1)).build(num_steps=config.num_steps, hidden_size=policy.hidden_size)
    return LocalLearner(
        policy,
        load_tokenizer(folder),
        made,
        Optimization(policy.model, config, modules=made.modules, modules_learning_rate=made.modules_learning_rate),
        max_tokens=config.micro_batch_tokens,
        max_grad_norm=config.max_grad_norm,
        activity=Activity(run, "trainer"),
    )


def trainer_in(
    run: Path, folder: str, *, attention: str = "auto", objective: ObjectiveConfig | None = None, **settings: Any
) -> Trainer:
    run.mkdir(exist_ok=True)
    settings = {"num_groups": 2, "group_size": GROUP_SIZE, **settings}
    return Trainer(
        run=run,
        learner=learner_in(run, folder, attention=attention, objective=objective, **settings),
        buffer=ReplayBuffer(1_000, 100),
        log=RolloutLog(run / "rollouts"),
        draws=DrawLog(run),
        epochs=Epochs.read(run),
        weights=InlineWeights(),
        groups=InlineGroups(),
        metrics=Metrics(run),
        activity=Activity(run, "trainer"),
        config=TrainerConfig(learning_rate=1e-2, **settings),
        buffer_config=BufferConfig(),
        checkpoint_config=CheckpointConfig(period=0),
        seed=0,
    )


def model_of(trainer: Trainer) -> PreTrainedModel:
    assert isinstance(trainer.learner, LocalLearner)
    return trainer.learner.policy.model


def random_groups(count: int, *, version: Version | int = 0, seed: int = 0, reward: float | None = None) -> list[Group]:
    """Groups of very different lengths."""
    rng = np.random.default_rng(seed)

    def tokens(longest: int) -> list[int]:
        return rng.integers(3, 40, rng.integers(1, longest + 1)).tolist()

    return [
        make_group(
            tokens(9),
            [tokens(20) for _ in range(GROUP_SIZE)],
            rng.random(GROUP_SIZE) if reward is None else [reward] * GROUP_SIZE,
            prompt_id=str(i),
            serial=i + 1,
            version=version,
        )
        for i in range(count)
    ]


def parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
