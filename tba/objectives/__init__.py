"""Objectives: pure functions, each in a file of its own, and what one of them may learn beside the policy."""

from tba.objectives.base import Loss, Objective
from tba.objectives.log_partition import LogPartition
from tba.objectives.trajectory_balance import trajectory_balance

# With a learned log Z it is the same function: the Trainer gives it what was learned.
OBJECTIVES: dict[str, Objective] = {
    "trajectory_balance": trajectory_balance,
    "trajectory_balance_learned_z": trajectory_balance,
}

__all__ = ["OBJECTIVES", "LogPartition", "Loss", "Objective", "trajectory_balance"]
