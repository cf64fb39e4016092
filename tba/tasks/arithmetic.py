"""The embedded task: chains such as `7+8-3+5=`, answered with the working shown and a last line `#### 17`.

Everything is generated, so nothing is downloaded. A ninth of all chains, which a check digit picks, is out of reach of
every training set and of the warm start of the embedded model. Results may be negative.
"""

from __future__ import annotations

import random
from typing import Literal

from pydantic import Field

from tba.tasks.base import Encode, Problem, Task, TaskSettings
from tba.tasks.chains import LEVELS, Chain, draw_chains
from tba.types import Prompt, TbaError


class Settings(TaskSettings):
    """Chains of additions and subtractions with the working shown, generated from a seed."""

    kind: Literal["arithmetic"] = "arithmetic"
    """The kind of task. `task = "arithmetic"` is short for `task.kind = "arithmetic"`."""
    difficulty: Literal["easy", "medium", "carry", "hard", "mixed"] = "easy"
    """How hard the problems are. `easy` has short chains of single digits, `medium` longer chains, `carry` those of the
    longer chains that need at least two carries, `hard` longer chains still, of two-digit numbers. `mixed` has many
    short responses and a few long ones: most of its chains are worked out already but for the last result, and a fifth
    has six numbers and at least two carries."""
    num_train: int = Field(4096, ge=1)
    """Number of different training problems."""
    num_eval: int = Field(256, ge=1)
    """Number of held-out problems. None of them is a training problem."""
    seed: int = Field(0, ge=0)
    """Seed from which training and held-out problems are generated."""

    def load(self, encode: Encode) -> Task:
        return Task(
            name="arithmetic",
            train=_problems(self, encode, "num_train"),
            held_out=_problems(self, encode, "num_eval"),
            default_reward="tba.rewards.answer:final_answer",
            breakdown=("num_terms",) if self.difficulty == "mixed" else (),
        )


def _problems(config: Settings, encode: Encode, setting: str) -> list[Problem]:
    level, held_out, wanted = LEVELS[config.difficulty], setting == "num_eval", getattr(config, setting)
    available = level.num_chains(held_out=held_out)
    if wanted > available:
        raise TbaError(
            f"task.{setting} = {wanted} is more than the {available} {config.difficulty} chains there are: "
            "ask for fewer, or raise task.difficulty"
        )
    rng = random.Random(f"{config.seed}/{setting}")
    return [_problem(chain, encode) for chain in draw_chains(level, wanted, held_out=held_out, rng=rng)]


def _problem(chain: Chain, encode: Encode) -> Problem:
    text, tokens = encode(chain.prompt)
    return Problem(
        prompt=Prompt(id=f"arithmetic-{chain}{'-begun' if chain.begun else ''}", text=text, tokens=tokens),
        content=chain.prompt,
        columns={"answer": str(chain.answer), "num_terms": len(chain.terms)},
    )
