"""What a Learner is: it holds the model that is trained, and obeys. The Trainer decides. Loads no torch.

A Learner knows nothing of buffers and channels, so that one process or several ranks can take its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tba.types import Group, Prompt, Response, TokenLogprobs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class StepResult:
    """What one step was like, in plain numbers: arrays are in the order of its groups."""

    loss: float
    grad_norm: float
    """Of the policy, before it was clipped."""
    learning_rate: float
    updated: bool
    """False if a gradient was not finite, and the weights are as they were."""
    advantage_GK: Floats
    gap_GK: Floats
    """Mean over a trajectory's tokens of |log π − log μ|, where μ is the distribution that the tokens were drawn from.
    At age 0 both have the same weights; what is left is the difference of the engine's and the Learner's kernels."""
    largest_gap_GK: Floats
    """The largest of these differences in each trajectory."""
    log_pi_mu_GK: Floats
    """log π − log μ of each trajectory, summed over its tokens: how much likelier it is now than when it was drawn."""
    metrics: Mapping[str, float]
    """The objective's own."""
    grad_cosine: float | None = None
    """Between this step's gradient and that of the step before, estimated; None if that is not known."""


class Learner(Protocol):
    """What the Trainer commands: one process or many."""

    def step(self, groups: Sequence[Group], age_GK: NDArray[np.int64], step: int) -> StepResult:
        """One optimizer step, the one that makes `step`, on these groups of equal size."""
        ...

    def reference_logprobs(self, answered: Sequence[tuple[Prompt, Sequence[Response]]]) -> list[list[TokenLogprobs]]:
        """What the reference makes of each token of these responses. Only where `reference.where` is `learner`.

        NaN if the reference moves: it reads responses when they are trained on, as it is then."""
        ...

    def weights(self) -> Mapping[str, NDArray[np.uint8]]:
        """The trainable weights as raw bytes by name. They are views: the next step changes them."""
        ...

    def save(self, folder: Path) -> None:
        """Write `model/`, a plain Hugging Face directory, and what `load` needs, into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        ...
