"""The embedded task: chains such as `7+8-3+5=`, answered with the working shown and a last line `#### 17`.

Everything is generated, so nothing is downloaded. A ninth of all chains, which a check digit picks, is out of reach of
every training set and of the warm start of the embedded model. Results may be negative.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from tba.tasks.base import Encode, Problem, Task, TaskSettings
from tba.tasks.check_digit import CHECK_MODULUS, is_held_out
from tba.types import Prompt, TbaError


class Settings(TaskSettings):
    """Chains of additions and subtractions with the working shown, generated from a seed."""

    kind: Literal["arithmetic"] = "arithmetic"
    """The kind of task. `task = "arithmetic"` is short for `task.kind = "arithmetic"`."""
    difficulty: Literal["easy", "medium", "hard"] = "easy"
    """How hard the problems are. `easy` has short chains of single digits, `medium` longer chains, `hard` longer ones
    still, of two-digit numbers."""
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
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """Signed terms to be added from left to right: `(7, 8, -3, 5)` is `7+8-3+5`. The first is positive."""

    terms: tuple[int, ...]

    def __str__(self) -> str:
        first, *rest = self.terms
        return f"{first}" + "".join(f"{term:+d}" for term in rest)

    @property
    def prompt(self) -> str:
        return f"{self}=\n"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def solution(self) -> str:
        """The reference response: one line for each operation, then the answer. Nothing follows it but the end."""
        total, *rest = self.terms
        lines = []
        for term in rest:
            lines.append(f"{total}{term:+d}={total + term}")
            total += term
        return "\n".join([*lines, f"#### {total}"])

    @property
    def held_out(self) -> bool:
        """True for exactly a ninth of the chains of each shape: with all terms but one fixed, one residue of the
        last one gives this check digit."""
        return is_held_out(self.terms)


@dataclass(frozen=True, slots=True)
class Level:
    """The bounds of a difficulty, all inclusive."""

    min_terms: int
    max_terms: int
    min_term: int
    max_term: int

    def draw(self, rng: random.Random) -> Chain:
        """A chain of any length with equal chance, its signs and sizes independent and uniform."""
        num_terms = rng.randint(self.min_terms, self.max_terms)
        sizes = [rng.randint(self.min_term, self.max_term) for _ in range(num_terms)]
        signs = [1, *rng.choices((1, -1), k=num_terms - 1)]
        return Chain(tuple(sign * size for sign, size in zip(signs, sizes, strict=True)))

    def num_chains(self, *, held_out: bool) -> int:
        span = self.max_term - self.min_term + 1
        shapes = range(self.min_terms, self.max_terms + 1)
        ninth = int(sum(span**num_terms << (num_terms - 1) for num_terms in shapes)) // CHECK_MODULUS
        return ninth if held_out else ninth * (CHECK_MODULUS - 1)


# The number of sizes, 9 or 90, is a multiple of the check modulus: that makes the held-out ninth exact.
LEVELS: Mapping[str, Level] = {
    "easy": Level(min_terms=3, max_terms=4, min_term=1, max_term=9),
    "medium": Level(min_terms=5, max_terms=6, min_term=1, max_term=9),
    "hard": Level(min_terms=6, max_terms=8, min_term=10, max_term=99),
}


def draw_chains(level: Level, num_chains: int, *, held_out: bool, rng: random.Random) -> list[Chain]:
    """Distinct chains of one side of the split, in the order drawn: asking for more only adds to the end."""
    chains: dict[Chain, None] = {}
    while len(chains) < num_chains:
        chain = level.draw(rng)
        if chain.held_out == held_out:
            chains[chain] = None
    return list(chains)


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
        prompt=Prompt(id=f"arithmetic-{chain}", text=text, tokens=tokens),
        content=chain.prompt,
        columns={"answer": str(chain.answer), "num_terms": len(chain.terms)},
    )
