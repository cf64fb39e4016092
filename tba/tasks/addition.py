"""Additions as chat questions, `What is 47 + 38?`: what a small chat model half knows and can learn in minutes.

A check digit of the two numbers, whatever their order, decides whether a question may be trained on or is held out: no
held-out question is in reach of any training set, and neither is the same sum written the other way round.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tba.tasks.base import Encode, Problem, Task, TaskSettings
from tba.tasks.check_digit import is_held_out
from tba.types import Prompt, TbaError


class Settings(TaskSettings):
    """Additions posed as chat questions, from single digits to `max_digits`, generated from a seed."""

    kind: Literal["addition"] = "addition"
    """The kind of task."""
    max_digits: int = Field(2, ge=1, le=9)
    """Most digits of a number that is added. Numbers of each length up to this are equally frequent."""
    instruction: str = "Reply with just the number."
    """Text that follows every question. It may be empty: the last number of a response counts as its answer either
    way."""
    num_train: int = Field(2048, ge=1)
    """Number of different training questions."""
    num_eval: int = Field(256, ge=1)
    """Number of held-out questions. Neither they nor the same sums with the numbers exchanged are trained on."""
    seed: int = Field(0, ge=0)
    """Seed from which training and held-out questions are generated."""

    def load(self, encode: Encode) -> Task:
        return Task(
            name="addition",
            train=_problems(self, encode, "num_train"),
            held_out=_problems(self, encode, "num_eval"),
            default_reward="tba.rewards.answer:last_number",
            breakdown=("digits",),
        )


@dataclass(frozen=True, slots=True)
class Addition:
    left: int
    right: int

    @property
    def held_out(self) -> bool:
        """True for about a ninth of all pairs."""
        return is_held_out(sorted((self.left, self.right)))

    @property
    def digits(self) -> str:
        """The lengths of the two numbers, the shorter first: `1+2`."""
        return "+".join(str(length) for length in sorted((len(str(self.left)), len(str(self.right)))))


def draw(config: Settings, wanted: int, *, held_out: bool, rng: random.Random) -> list[Addition]:
    """Distinct additions of one side of the split. Each number has any length with equal chance while some are left."""
    found: dict[Addition, None] = {}
    misses = 0
    while len(found) < wanted:
        addition = Addition(_number(config.max_digits, rng), _number(config.max_digits, rng))
        misses += 1
        if addition.held_out == held_out and addition not in found:
            found[addition] = None
            misses = 0
        elif misses > 100_000:
            setting = "num_eval" if held_out else "num_train"
            raise TbaError(
                f"task.{setting} = {wanted} is more than the additions of up to {config.max_digits} digits there are "
                f"(about {len(found)}): ask for fewer, or raise task.max_digits"
            )
    return list(found)


def _number(max_digits: int, rng: random.Random) -> int:
    length = rng.randint(1, max_digits)
    return rng.randint(10 ** (length - 1), 10**length - 1)


def _problems(config: Settings, encode: Encode, setting: str) -> list[Problem]:
    rng = random.Random(f"{config.seed}/{setting}")
    wanted = getattr(config, setting)
    return [_problem(a, config, encode) for a in draw(config, wanted, held_out=setting == "num_eval", rng=rng)]


def _problem(addition: Addition, config: Settings, encode: Encode) -> Problem:
    question = f"What is {addition.left} + {addition.right}? {config.instruction}".rstrip()
    content = [{"role": "user", "content": question}]
    text, tokens = encode(content)
    return Problem(
        prompt=Prompt(id=f"addition-{addition.left}+{addition.right}", text=text, tokens=tokens),
        content=content,
        columns={"answer": str(addition.left + addition.right), "digits": addition.digits},
    )
