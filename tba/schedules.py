"""Schedules are functions of the step: nothing is mutated, and what is logged is what was used."""

from __future__ import annotations

from dataclasses import dataclass

from tba.config import ObjectiveConfig


@dataclass(frozen=True)
class Target:
    """What is sought at a step: π_ref^w · exp(reward / β) / Z, with β and w as numbers."""

    beta: float
    reference_weight: float


def target_at(step: int, config: ObjectiveConfig, num_steps: int) -> Target:
    """The target of the update that makes `step` (the first is 1).

    The settings describe exp((log π_ref / γ + reward / β) / T). That is the target above with β·T for β and
    1 / (γ·T) for w, so rewards and reference log-probabilities are stored as they are and only weighed here.
    """
    gamma = _line(
        step,
        config.reference_temperature,
        config.reference_temperature_final,
        config.reference_temperature_steps or num_steps,
    )
    temperature = _line(
        step, config.reward_temperature, config.reward_temperature_final, config.reward_temperature_steps or num_steps
    )
    return Target(beta_at(step, config, num_steps) * temperature, 1 / (gamma * temperature))


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


def _line(step: int, first: float, final: float | None, length: int) -> float:
    """From `first` at step 1 to `final` after `length` further steps, and on."""
    if final is None:
        return first
    done = min(1.0, (step - 1) / length)
    return first * (1 - done) + final * done
