"""What the buffer and its log both refuse: a group let into one of them must be fit for the other."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tba.types import Group


def check_groups(groups: Sequence[Group]) -> None:
    """ValueError for a group without trajectories, a reward that no softmax can weigh, or a response that the policy
    wrote nothing of."""
    for group in groups:
        if not group.trajectories:
            raise ValueError(f"group {group.source}/{group.serial} has no trajectories")
        for trajectory in group.trajectories:
            if not math.isfinite(trajectory.reward):
                raise ValueError(f"prompt {group.prompt.id}: reward {trajectory.reward} is not finite")
            if not trajectory.response.num_written:
                raise ValueError(f"prompt {group.prompt.id}: a response has no token that the policy wrote")
