"""Schedules are functions of the step: nothing is mutated, and what is logged is what was used."""

from __future__ import annotations

from tba.config import ObjectiveConfig


def beta_at(step: int, config: ObjectiveConfig, num_steps: int) -> float:
    """β for the update that makes `step` (the first is 1).

    The paper's schedule walks a line from `beta` to `beta_final` over T steps and, from the stop step on, stays at
    `beta_final`: with stop < T that is a jump, with stop = T a plain linear schedule.
    """
    if config.beta_schedule == "constant" or config.beta_final is None:
        return config.beta
    length = config.beta_steps or max(1, num_steps // 2)
    stop = length if config.beta_schedule == "linear" else config.beta_stop or max(1, num_steps // 8)
    if step >= min(stop, length + 1):
        return config.beta_final
    done = (step - 1) / length
    return config.beta_final * done + config.beta * (1 - done)
