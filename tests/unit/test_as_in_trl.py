"""GRPO, Dr. GRPO and RLOO give the numbers and gradients of TRL's own losses on the same log-probabilities."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from objective_cases import random_evidence
from torch import Tensor
from torch.testing import assert_close

from tba.objectives import Evidence
from tba.objectives.dr_grpo import Settings as DrGrpo
from tba.objectives.grpo import Settings as Grpo
from tba.objectives.policy_gradient import group_advantage
from tba.objectives.rloo import Settings as Rloo
from tba.objectives.rloo import leave_one_out

pytest.importorskip("trl")
SHAPE, LONGEST = (3, 4), 9


class Accelerator:
    """One process."""

    num_processes = 1

    def gather(self, value: Tensor) -> Tensor:
        return value

    def reduce(self, value: Tensor, reduction: str) -> Tensor:
        return value


class Stub(SimpleNamespace):
    """What TRL's loss reads of its trainer, with our log-probabilities in place of those of a model."""

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, None]:
        return self.logps, torch.zeros_like(self.logps), None


def trainer(logps: Tensor, **settings: Any) -> Stub:
    defaults: dict[str, Any] = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "use_vllm": False,
        "model": SimpleNamespace(training=True),
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": 256,
        "_entropy_bonus_enabled": False,
        "_metrics": {"train": defaultdict(list)},
        "accelerator": Accelerator(),
        "args": SimpleNamespace(use_bias_correction_kl=False, delta=None, steps_per_generation=1),
    }
    return Stub(logps=logps, **(defaults | settings))


def padded(evidence: Evidence, values_J: Tensor) -> Tensor:
    """(J,) to (B, T), differentiably."""
    table = values_J.new_zeros(evidence.reward_GK.numel(), LONGEST)
    return table.index_put((evidence.trajectory_J, evidence.position_J), values_J)


def inputs(evidence: Evidence, advantage_GK: Tensor) -> dict[str, Tensor]:
    """Prompts of one token; token ids are never read."""
    mask = padded(evidence, torch.ones_like(evidence.behaviour_J)).long()
    behaviour = padded(evidence, evidence.behaviour_J)
    return {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": advantage_GK.flatten(),
        "old_per_token_logps": behaviour,
        "old_logps": behaviour.sum(1),
        "ref_per_token_logps": padded(evidence, evidence.reference_J),
        "num_items_in_batch": mask.sum().double(),
    }


def assert_as_ours(ours: Any, theirs: Tensor, leaf: Tensor) -> None:
    assert_close(ours.value, theirs, rtol=1e-5, atol=1e-8)
    found, wanted = (torch.autograd.grad(value, leaf, retain_graph=True)[0] for value in (ours.value, theirs))
    assert float(wanted.abs().max()) > 1e-3
    assert_close(found, wanted, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kl_weight", [0.0, 0.04])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_by_token(kind: str, seed: int, kl_weight: float) -> None:
    from trl import GRPOTrainer

    evidence, leaf = random_evidence(seed, SHAPE, drift=0.3, longest=LONGEST)
    bounds = {"clip_low": 0.1, "clip_high": 0.28, "kl_weight": kl_weight}
    settings: Any = Grpo(**bounds) if kind == "grpo" else DrGrpo(**bounds, constant_length=31)
    ours = settings.build(num_steps=1, hidden_size=1)(evidence)
    assert 0 < float(ours.values_GK["clipped_fraction"].mean()) < 1
    stub = trainer(
        padded(evidence, evidence.policy_J),
        loss_type=kind,
        beta=kl_weight,
        epsilon_low=0.1,
        epsilon_high=0.28,
        max_completion_length=31,
    )
    assert_as_ours(ours, GRPOTrainer._compute_loss(stub, None, inputs(evidence, ours.advantage_GK)), leaf)


def test_truncated_ratios_are_those_of_cispo() -> None:
    """TRL divides that loss by the number of tokens."""
    from trl import GRPOTrainer

    evidence, leaf = random_evidence(2, SHAPE, drift=0.3, longest=LONGEST)
    settings = DrGrpo(ratio="truncate", ratio_cap=1.2, constant_length=1)
    ours = settings.build(num_steps=1, hidden_size=1)(evidence)
    stub = trainer(padded(evidence, evidence.policy_J), loss_type="cispo", beta=0.0, epsilon_low=0.2, epsilon_high=1.2)
    theirs = GRPOTrainer._compute_loss(stub, None, inputs(evidence, ours.advantage_GK))
    assert_as_ours(ours, theirs * len(evidence.policy_J) / evidence.reward_GK.numel(), leaf)


def test_by_response() -> None:
    from trl import RLOOTrainer

    evidence, leaf = random_evidence(0, SHAPE, drift=0.1, longest=LONGEST)
    ours = Rloo(beta=0.1, ratio="clip").build(num_steps=1, hidden_size=1)(evidence)
    assert 0 < float(ours.values_GK["clipped_fraction"].mean()) < 1
    stub = trainer(padded(evidence, evidence.policy_J), epsilon_low=0.2, epsilon_high=0.2)
    assert_as_ours(ours, RLOOTrainer._compute_loss(stub, None, inputs(evidence, ours.advantage_GK)), leaf)


def test_advantages_by_trls_formulas() -> None:
    """Written out as TRL does before its loss; there they are inlined in the generation of completions."""
    from trl.trainer.utils import nanstd

    reward_GK = random_evidence(0, SHAPE)[0].reward_GK
    flat, K = reward_GK.flatten(), SHAPE[1]
    mean = reward_GK.mean(1).repeat_interleave(K)
    scaled = (flat - mean) / (nanstd(reward_GK, dim=1).repeat_interleave(K) + 1e-4)
    assert_close(group_advantage(reward_GK, by_deviation=True).flatten(), scaled)
    assert_close(group_advantage(reward_GK, by_deviation=False).flatten(), flat - mean)
    baselines = (reward_GK.sum(1, keepdim=True) - reward_GK) / (K - 1)
    assert_close(leave_one_out(reward_GK), reward_GK - baselines)
