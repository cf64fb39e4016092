"""Objectives by name: each a pure function in a file of its own."""

from tba.objectives.base import Loss, Objective
from tba.objectives.trajectory_balance import trajectory_balance

OBJECTIVES: dict[str, Objective] = {"trajectory_balance": trajectory_balance}

__all__ = ["OBJECTIVES", "Loss", "Objective", "trajectory_balance"]
