"""One pass of a step: a batch, and with what the policy makes of its tokens, the evidence for an objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tba.objectives import Evidence, StepTotals
from tba.policy.batch import Batch
from tba.policy.policy import Logprobs
from tba.types import Group


@dataclass(frozen=True)
class Pass:
    """Groups that are computed together."""

    batch: Batch
    age_GK: Tensor
    step: int
    totals: StepTotals

    def evidence(self, logprobs: Logprobs) -> Evidence:
        """`logprobs` are those of all parts of the batch, one after the other."""
        batch = self.batch
        return Evidence(
            policy_J=logprobs.tokens_T.index_select(0, batch.token_J),
            behaviour_J=batch.behaviour_J,
            reference_J=batch.reference_J,
            trajectory_J=batch.trajectory_J,
            position_J=batch.position_J,
            reward_GK=batch.reward_GK,
            age_GK=self.age_GK,
            length_GK=batch.length_GK,
            on_policy_GK=batch.on_policy_GK,
            prompt_GH=logprobs.prompt_GH,
            step=self.step,
            totals=self.totals,
        )


class Gap(NamedTuple):
    """How far the log-probabilities of the policy are from those that the tokens were drawn with, per trajectory."""

    mean_GK: Tensor
    """Mean over the tokens of the absolute difference."""
    largest_GK: Tensor
    sum_GK: Tensor
    """Sum over the tokens of the difference with its sign: log π − log μ of the whole response."""


def gap_of(evidence: Evidence) -> Gap:
    gap_J = evidence.policy_J.detach() - evidence.behaviour_J
    size_J = gap_J.abs()
    mean_GK = evidence.per_trajectory(size_J) / evidence.length_GK
    largest = [part.amax() for part in size_J.split(evidence.length_GK.flatten().tolist())]
    return Gap(mean_GK, torch.stack(largest).view(mean_GK.shape), evidence.per_trajectory(gap_J))


def totals_of(groups: Sequence[Group]) -> StepTotals:
    return StepTotals(
        num_groups=len(groups),
        num_trajectories=sum(len(group.trajectories) for group in groups),
        num_tokens=sum(t.response.num_written for group in groups for t in group.trajectories),
    )
