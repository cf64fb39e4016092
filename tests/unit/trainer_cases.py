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
from tba.config import BufferConfig, CheckpointConfig, ModelConfig, ObjectiveConfig, TrainerConfig
from tba.epochs import Epochs
from tba.metrics import Metrics
from tba.objectives import LogPartition, trajectory_balance
from tba.policy import load_model, load_tokenizer
from tba.testing import make_group
from tba.trainer import Trainer
from tba.types import Group, Version

GROUP_SIZE = 3


def trainer_in(
    run: Path, folder: str, *, attention: str = "auto", log_z: LogPartition | None = None, **settings: Any
) -> Trainer:
    run.mkdir(exist_ok=True)
    return Trainer(
        run=run,
        model=load_model(folder, attention=attention),
        tokenizer=load_tokenizer(folder),
        objective=trajectory_balance,
        log_z=log_z,
        buffer=ReplayBuffer(1_000, 100),
        log=RolloutLog(run / "rollouts"),
        draws=DrawLog(run),
        epochs=Epochs.read(run),
        weights=InlineWeights(),
        groups=InlineGroups(),
        metrics=Metrics(run),
        activity=Activity(run, "trainer"),
        config=TrainerConfig(num_groups=2, group_size=GROUP_SIZE, learning_rate=1e-2, **settings),
        model_config=ModelConfig(path=folder),
        buffer_config=BufferConfig(),
        objective_config=ObjectiveConfig(beta=0.1),
        checkpoint_config=CheckpointConfig(period=0),
        temperature=0.8,
        seed=0,
    )


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
