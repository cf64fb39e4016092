"""What an objective is: it turns what is known of a step's trajectories into a loss. Loads no torch by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tba.config.section import Section

if TYPE_CHECKING:  # settings are parsed in processes that never load torch
    from torch import Tensor, nn


StepValues = Mapping[str, NDArray[np.float64]]
"""Numbers of all trajectories of a step by name, (G, K) each."""


@dataclass(frozen=True)
class StepTotals:
    """How much is trained on in the whole step, of which one pass sees a part."""

    num_groups: int
    num_trajectories: int
    num_tokens: int
    """Tokens that the policy wrote."""


@dataclass(frozen=True)
class Evidence:
    """What an objective sees of G groups of K trajectories: all of each group, and some or all groups of a step.

    J counts the tokens that the policy wrote, trajectory by trajectory; text that an environment wrote is not among
    them. Only `policy_J` has a gradient. What was recorded is in float64, so that its sums are exact.

        groups              prompt "2+2=": "4", "5!"        prompt "1+2=": "3", "3"        G = 2, K = 2
        policy_J            4   5   !                       3   3                          J = 5
        trajectory_J        0   1   1                       2   3
        position_J          0   0   1                       0   0
    """

    policy_J: Tensor
    """Log-probability of each token under the weights that are trained."""
    behaviour_J: Tensor
    """The same in the distribution that the token was drawn from, which may be tempered, truncated, quantised or
    stale."""
    reference_J: Tensor
    """The same under the reference."""
    trajectory_J: Tensor
    """The trajectory of each token, 0 … G·K − 1, group by group."""
    position_J: Tensor
    """The place of each token in its response."""
    reward_GK: Tensor
    age_GK: Tensor
    """Optimizer steps between the weights that made a trajectory and those that are trained now."""
    length_GK: Tensor
    """Tokens of each trajectory that the policy wrote."""
    on_policy_GK: Tensor
    """Whether each was sampled at the policy's own temperature, not hotter or colder for exploration."""
    prompt_GH: Tensor
    """The mean of each prompt's last hidden states, without a gradient."""
    step: int
    """The update that is being made; the first is 1."""
    totals: StepTotals

    @property
    def shape(self) -> tuple[int, int]:
        G, K = self.reward_GK.shape
        return G, K

    def per_trajectory(self, values_J: Tensor) -> Tensor:
        """Sum something over the tokens of each trajectory, differentiably: (J,) to (G, K)."""
        G, K = self.shape
        return values_J.new_zeros(G * K).index_add(0, self.trajectory_J, values_J).view(G, K)

    def per_token(self, values_GK: Tensor) -> Tensor:
        """Give each token the value of its trajectory: (G, K) to (J,)."""
        return values_GK.flatten().index_select(0, self.trajectory_J)

    @property
    def policy_GK(self) -> Tensor:
        return self.per_trajectory(self.policy_J)

    @property
    def behaviour_GK(self) -> Tensor:
        return self.per_trajectory(self.behaviour_J).to(self.policy_J.dtype)

    @property
    def reference_GK(self) -> Tensor:
        return self.per_trajectory(self.reference_J).to(self.policy_J.dtype)

    @property
    def drift_GK(self) -> Tensor:
        """ρ = log π − log μ, without a gradient: how far the policy has moved from what the tokens were drawn from.

        Summed over differences, not a difference of sums: those may be a thousand times as large.
        """
        return self.per_trajectory(self.policy_J.detach() - self.behaviour_J).to(self.policy_J.dtype)


@dataclass(frozen=True)
class Loss:
    """What one pass adds to the loss of its step, and numbers that describe its trajectories."""

    value: Tensor
    """A scalar. Those of all passes of a step add up to the loss of the step, however its groups are split: means are
    over `Evidence.totals`."""
    advantage_GK: Tensor
    """How strongly each trajectory is pushed, before any weight on it: up where positive, down where negative."""
    values_GK: Mapping[str, Tensor] = field(default_factory=dict)
    """Other numbers of each trajectory, from which `Objective.metrics` makes those of the step."""


KIND_TEXT = (
    "Which objective: `trajectory_balance`, `trajectory_balance_learned_z`, `tba_prime`, `rloo`, `grpo`, `dr_grpo`, or "
    "one of your own (`module:Class`)."
)
"""What every kind says of `objective.kind`."""


class Objective(ABC):
    """An objective with its settings, its schedules and what it learns beside the policy.

    It is called once for each pass of a step, and does not know of models, devices or processes.
    """

    modules: Mapping[str, nn.Module] = {}
    """What it learns beside the policy, by name: part of every checkpoint."""
    modules_learning_rate: float = 1e-3
    """Peak learning rate of these modules, which follows the schedule of the policy's."""

    wants_first_look: bool = False
    """Whether `first_look` is still to be called."""

    @abstractmethod
    def __call__(self, evidence: Evidence) -> Loss: ...

    def first_look(self, passes: Sequence[Evidence]) -> None:
        """All groups of the first step, without gradients, before anything is learned from them."""
        raise NotImplementedError

    def metrics(self, step: int, values: StepValues) -> dict[str, float]:
        """What `metrics.jsonl` says of a step, from `Loss.values_GK` of all its trajectories: by default the means."""
        return {name: float(array.mean()) for name, array in values.items()}

    def after_step(self, values: StepValues) -> None:
        """Take note of `Loss.values_GK` of all trajectories of a step that is over, after its `metrics`.

        What an objective measures while it trains is changed here and nowhere else, so that every pass of a step has
        the same numbers, however the step is split.
        """
        return

    def state(self) -> dict[str, float]:
        """What it has measured: part of every checkpoint. What it learns by gradients is in `modules`."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on with what `state` gave. It is empty if the checkpoint is of an objective that measured nothing."""
        return


class ObjectiveSettings(Section):
    """The settings of one kind of objective, which make it."""

    kind: str = Field(description=KIND_TEXT)
    is_code: ClassVar[bool] = False
    """Whether these settings name code of the user's."""
    before: ClassVar[Mapping[str, Any]] = {}
    """What runs did before there was a setting for it, where its default is something else."""

    def build(self, *, num_steps: int, hidden_size: int) -> Objective:
        """The objective of a run of so many steps, with a model whose hidden states have this size."""
        raise NotImplementedError

    def check(self) -> None:
        """TbaError if it cannot be built, as far as that can be told before a model is loaded."""
