"""Trainers of a tiny model, and made-up groups for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.channels.inline import InlineGroups, InlineWeights
from tba.config.training import BufferConfig, CheckpointConfig, TrainerConfig
from tba.learn.buffer_supply import BufferSupply
from tba.learn.epochs import Epochs
from tba.learn.exact_staleness import ExactStaleness
from tba.learn.learner import LocalLearner
from tba.learn.optimization import Optimization
from tba.learn.step_queue import StepQueue
from tba.learn.supply import Supply
from tba.learn.trainer import Trainer
from tba.objectives import ObjectiveConfig
from tba.objectives.dr_grpo import Settings as DrGrpo
from tba.objectives.grpo import Settings as Grpo
from tba.objectives.own import Settings as OwnSettings
from tba.objectives.rloo import Settings as Rloo
from tba.objectives.tba_prime import Settings as TbaPrime
from tba.objectives.trajectory_balance import Settings as VarGrad
from tba.objectives.trajectory_balance_learned_z import Settings as LearnedLogZ
from tba.policy.devices import moved
from tba.policy.lora import add_adapters
from tba.policy.policy import Policy, load_model, load_tokenizer
from tba.runs.activity import Activity
from tba.runs.metrics import Metrics
from tba.testing import make_group
from tba.types import Group, Version

ROOT = Path(__file__).parents[2]
OWN = f"{ROOT / 'examples' / 'own_objective' / 'objectives.py'}:ClippedPolicyGradient"
OBJECTIVES: dict[str, ObjectiveConfig] = {
    "trajectory balance": VarGrad(beta=0.1),
    "learned log Z": LearnedLogZ(beta=0.1, log_z_learning_rate=0.05),
    "own, by tokens": OwnSettings(kind=OWN, clip=0.02),
    "tapered": VarGrad(
        beta=0.1, stale_negatives="taper", stale_threshold=3.0, anchor=0.05, baseline_shift=0.1, proximal=0.02
    ),
    "learned log Z, masked": LearnedLogZ(beta=0.1, stale_negatives="mask", stale_threshold=0.1),
    "TBA'": TbaPrime(beta=0.1, ratio_cap=8.0),
    "RLOO": Rloo(),
    "GRPO": Grpo(kl_weight=0.05),
    "Dr. GRPO": DrGrpo(ratio="truncate", constant_length=20),
}
"""One of each kind, and trajectory balance with all that can be done about stale data."""
GROUP_SIZE = 3


def learner_in(
    run: Path,
    folder: str,
    *,
    attention: str = "auto",
    objective: ObjectiveConfig | None = None,
    device: str = "cpu",
    lora_rank: int = 0,
    bf16: bool = False,
    grad_cosine: bool = True,
    **settings: Any,
) -> LocalLearner:
    config = TrainerConfig(learning_rate=1e-2, **settings)
    model = load_model(folder, attention=attention)
    if lora_rank:
        add_adapters(model, rank=lora_rank, alpha=4.0, targets=("all-linear",), seed=0)
    policy = Policy(moved(model, torch.device(device)), temperature=0.8, bf16=bf16)
    made = (objective or VarGrad(beta=0.1)).build(num_steps=config.num_steps, hidden_size=policy.hidden_size)
    for module in made.modules.values():
        moved(module, policy.device)
    return LocalLearner(
        policy,
        load_tokenizer(folder),
        made,
        Optimization(policy.model, config, modules=made.modules, modules_learning_rate=made.modules_learning_rate),
        max_tokens=config.pass_tokens,
        max_grad_norm=config.max_grad_norm,
        activity=Activity(run, "trainer"),
        grad_cosine=grad_cosine,
    )


def trainer_in(
    run: Path, folder: str, *, attention: str = "auto", objective: ObjectiveConfig | None = None, **settings: Any
) -> Trainer:
    run.mkdir(exist_ok=True)
    settings = {"num_groups": 2, "group_size": GROUP_SIZE, **settings}
    config = TrainerConfig(learning_rate=1e-2, **settings)
    epochs = Epochs.read(run)
    supply: Supply = BufferSupply(config, BufferConfig(capacity=1_000), epochs)
    if config.staleness is not None:
        supply = StepQueue(ExactStaleness(config.staleness, config.num_groups, config.num_steps), config.group_size)
    return Trainer(
        run=run,
        learner=learner_in(run, folder, attention=attention, objective=objective, **settings),
        supply=supply,
        log=RolloutLog(run / "rollouts"),
        draws=DrawLog(run),
        epochs=epochs,
        weights=InlineWeights(),
        groups=InlineGroups(),
        metrics=Metrics(run),
        activity=Activity(run, "trainer"),
        config=config,
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


def groups_with_copies(count: int, seed: int, group_size: int = 6) -> list[Group]:
    """Responses of very different lengths, some of them more than once."""
    rng = np.random.default_rng(seed)

    def tokens(longest: int) -> list[int]:
        return rng.integers(3, 40, rng.integers(1, longest + 1)).tolist()

    groups = []
    for i in range(count):
        some = [tokens(20) for _ in range(group_size - 1)]
        groups.append(make_group(tokens(9), [*some, some[0]], rng.random(group_size), prompt_id=str(i), serial=i + 1))
    return groups


def ages(groups: Sequence[Group]) -> NDArray[np.int64]:
    return np.zeros((len(groups), len(groups[0].trajectories)), dtype=np.int64)


def mixed_ages(groups: Sequence[Group]) -> NDArray[np.int64]:
    """From 0 to 2 within every group."""
    return (np.arange(ages(groups).size) % 3).reshape(ages(groups).shape)


def parameters(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
