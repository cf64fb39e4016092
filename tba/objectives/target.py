"""The target of trajectory balance and its schedules, which are functions of the step: what is logged was used."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from tba.objectives.base import ObjectiveSettings


class Target(NamedTuple):
    """What is sought at a step: π_ref^w · exp(reward / β) / Z, with β and w as numbers."""

    beta: float
    reference_weight: float


class TargetSettings(ObjectiveSettings):
    """Settings of the target, which every form of trajectory balance has."""

    beta: float = Field(0.05, gt=0)
    """Temperature of the target: the optimum is the reference times exp(reward / beta)."""
    beta_final: float | None = Field(None, gt=0)
    """Value of `objective.beta` at the end of its schedule. It is required unless `objective.beta_schedule` is
    `constant`."""
    beta_schedule: Literal["constant", "linear", "jump"] = "constant"
    """How `objective.beta` changes. `linear` moves it to `objective.beta_final` over `objective.beta_steps`. `jump`
    does the same until step `objective.beta_stop` and then goes to `objective.beta_final` at once."""
    beta_steps: int | None = Field(None, ge=1)
    """Steps over which `objective.beta` moves to `objective.beta_final`. If empty, half of `trainer.num_steps`, as in
    the paper's TL;DR runs."""
    beta_stop: int | None = Field(None, ge=1)
    """Step at which `objective.beta` jumps if `objective.beta_schedule` is `jump`. If empty, an eighth of
    `trainer.num_steps`."""
    reference_temperature: float = Field(1.0, gt=0)
    """γ in the target exp((log π_ref / γ + reward / beta) / T): above 1 the reference holds the policy less."""
    reference_temperature_final: float | None = Field(None, gt=0)
    """Value of `objective.reference_temperature` at the end of its schedule. If empty, it is constant."""
    reference_temperature_steps: int | None = Field(None, ge=1)
    """Steps over which `objective.reference_temperature` moves to its final value. If empty, all of
    `trainer.num_steps`."""
    reward_temperature: float = Field(1.0, gt=0)
    """T in the target exp((log π_ref / γ + reward / beta) / T): above 1 the target is flatter, which helps exploration
    early on."""
    reward_temperature_final: float | None = Field(None, gt=0)
    """Value of `objective.reward_temperature` at the end of its schedule. If empty, it is constant."""
    reward_temperature_steps: int | None = Field(None, ge=1)
    """Steps over which `objective.reward_temperature` moves to its final value. If empty, all of
    `trainer.num_steps`."""

    def target_at(self, step: int, num_steps: int) -> Target:
        """The target of the update that makes `step` (the first is 1).

        The settings describe exp((log π_ref / γ + reward / β) / T). That is the target above with β·T for β and
        1 / (γ·T) for w, so rewards and reference log-probabilities are stored as they are and only weighed here.
        """
        gamma = _line(
            step,
            self.reference_temperature,
            self.reference_temperature_final,
            self.reference_temperature_steps or num_steps,
        )
        temperature = _line(
            step, self.reward_temperature, self.reward_temperature_final, self.reward_temperature_steps or num_steps
        )
        return Target(self.beta_at(step, num_steps) * temperature, 1 / (gamma * temperature))

    def beta_at(self, step: int, num_steps: int) -> float:
        """β for the update that makes `step` (the first is 1).

        The paper's schedule walks a line from `beta` to `beta_final` over T steps and, from the stop step on, stays at
        `beta_final`: with stop < T that is a jump, with stop = T a plain linear schedule.
        """
        if self.beta_schedule == "constant" or self.beta_final is None:
            return self.beta
        length = self.beta_steps or max(1, num_steps // 2)
        stop = length if self.beta_schedule == "linear" else self.beta_stop or max(1, num_steps // 8)
        if step >= min(stop, length + 1):
            return self.beta_final
        done = (step - 1) / length
        return self.beta_final * done + self.beta * (1 - done)

    @model_validator(mode="after")
    def _check_schedules(self) -> TargetSettings:
        if self.beta_schedule != "constant" and self.beta_final is None:
            raise ValueError(f"objective.beta_final is missing: beta_schedule = {self.beta_schedule!r} needs it")
        for name in ("reference_temperature", "reward_temperature"):
            if getattr(self, f"{name}_steps") is not None and getattr(self, f"{name}_final") is None:
                raise ValueError(f"objective.{name}_final is missing: {name}_steps is of no use without it")
        return self


def _line(step: int, first: float, final: float | None, length: int) -> float:
    """From `first` at step 1 to `final` after `length` further steps, and on."""
    if final is None:
        return first
    done = min(1.0, (step - 1) / length)
    return first * (1 - done) + final * done
