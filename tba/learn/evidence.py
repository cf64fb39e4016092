"""A batch and what the policy makes of its tokens, put together for an objective."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tba.batch import Batch
from tba.objectives import Evidence, StepTotals
from tba.policy import Logprobs
from tba.types import Group


def evidence(batch: Batch, logprobs: Logprobs, age_GK: Tensor, step: int, totals: StepTotals) -> Evidence:
    """`logprobs` are those of all parts of the batch, one after the other."""
    return Evidence(
        policy_J=logprobs.tokens_T.index_select(0, batch.token_J),
        behaviour_J=batch.behaviour_J,
        reference_J=batch.reference_J,
        trajectory_J=batch.trajectory_J,
        position_J=batch.position_J,
        reward_GK=batch.reward_GK,
        age_GK=age_GK,
        length_GK=batch.length_GK,
        prompt_GH=logprobs.prompt_GH,
        step=step,
        totals=totals,
    )


def totals_of(groups: Sequence[Group]) -> StepTotals:
    return StepTotals(
        num_groups=len(groups),
        num_trajectories=sum(len(group.trajectories) for group in groups),
        num_tokens=sum(group.num_tokens for group in groups),
    )
