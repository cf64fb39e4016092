"""Chains such as `7+8-3+5=`, how they are worked out, and the levels of difficulty that they are drawn from."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tba.tasks.check_digit import CHECK_MODULUS, is_held_out


@dataclass(frozen=True, slots=True)
class Chain:
    """Signed terms to be added from left to right: `(7, 8, -3, 5)` is `7+8-3+5`. The first is positive."""

    terms: tuple[int, ...]
    begun: bool = False
    """True: the prompt has the working too, up to the last result, which is left to the response."""

    def __str__(self) -> str:
        first, *rest = self.terms
        return f"{first}" + "".join(f"{term:+d}" for term in rest)

    @property
    def prompt(self) -> str:
        return f"{self}=\n{self._working[: self._num_given]}"

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def solution(self) -> str:
        """The reference response: one line for each operation, then the answer. Nothing follows it but the end."""
        return self._working[self._num_given :]

    @property
    def _num_given(self) -> int:
        """How many characters of the working stand in the prompt."""
        return self._working.rindex("=") + 1 if self.begun else 0

    @property
    def _working(self) -> str:
        total, *rest = self.terms
        lines = []
        for term in rest:
            lines.append(f"{total}{term:+d}={total + term}")
            total += term
        return "\n".join([*lines, f"#### {total}"])

    @property
    def num_carries(self) -> int:
        """In how many operations the tens change, which is what the embedded model has half learnt."""
        return sum(_is_carry(*pair) for pair in itertools.pairwise(itertools.accumulate(self.terms)))

    @property
    def held_out(self) -> bool:
        """True for exactly a ninth of the chains of each shape: with all terms but one fixed, one residue of the
        last one gives this check digit."""
        return is_held_out(self.terms)


def _is_carry(before: int, after: int) -> bool:
    return abs(before) // 10 != abs(after) // 10


@dataclass(frozen=True, slots=True)
class Level:
    """The bounds of a difficulty, all inclusive, and what else its chains must be."""

    min_terms: int
    max_terms: int
    min_term: int
    max_term: int
    min_carries: int = 0
    almost_done: bool = False
    """Chains that are begun and whose answer is one digit: these have the shortest responses."""

    def draw(self, rng: random.Random) -> Chain:
        """A chain of any length with equal chance, its signs and sizes independent and uniform; the first that is what
        it must be."""
        while True:
            num_terms = rng.randint(self.min_terms, self.max_terms)
            sizes = [rng.randint(self.min_term, self.max_term) for _ in range(num_terms)]
            signs = [1, *rng.choices((1, -1), k=num_terms - 1)]
            terms = tuple(sign * size for sign, size in zip(signs, sizes, strict=True))
            chain = Chain(terms, begun=self.almost_done)
            if chain.num_carries >= self.min_carries and (not self.almost_done or 0 <= chain.answer <= 9):
                return chain

    def num_chains(self, *, held_out: bool) -> int:
        shapes = range(self.min_terms, self.max_terms + 1)
        if self.min_carries or self.almost_done:
            return sum(self._count(num_terms, held_out) for num_terms in shapes)
        span = self.max_term - self.min_term + 1
        ninth = int(sum(span**num_terms << (num_terms - 1) for num_terms in shapes)) // CHECK_MODULUS
        return ninth if held_out else ninth * (CHECK_MODULUS - 1)

    def _count(self, num_terms: int, held_out: bool) -> int:
        """Chains of one length, counted term by term: beginnings with the same total, check digit and carries are
        alike."""
        sizes = range(self.min_term, self.max_term + 1)
        counts = Counter((size, size % CHECK_MODULUS, 0) for size in sizes)
        for place in range(1, num_terms):
            longer: Counter[tuple[int, int, int]] = Counter()
            for ((total, digit, carries), count), size, sign in itertools.product(counts.items(), sizes, (1, -1)):
                after = total + sign * size
                check = (digit + (sign * size << place)) % CHECK_MODULUS
                longer[after, check, carries + _is_carry(total, after)] += count
            counts = longer
        return sum(
            count
            for (total, digit, carries), count in counts.items()
            if (digit == 0) == held_out and carries >= self.min_carries and (not self.almost_done or 0 <= total <= 9)
        )


@dataclass(frozen=True, slots=True)
class Mixture:
    """Chains of several levels, each with its share; the shares add up to 1."""

    parts: tuple[tuple[float, Level], ...]

    def pick(self, rng: random.Random) -> Level:
        (level,) = rng.choices([level for _, level in self.parts], [share for share, _ in self.parts])
        return level

    def draw(self, rng: random.Random) -> Chain:
        return self.pick(rng).draw(rng)

    def num_chains(self, *, held_out: bool) -> int:
        """As many as can be drawn before a level runs out. A tenth is left over, because shares hold on average."""
        return int(0.9 * min(level.num_chains(held_out=held_out) / share for share, level in self.parts))


# The number of sizes, 9 or 90, is a multiple of the check modulus: that makes the held-out ninth exact.
EASY = Level(min_terms=3, max_terms=4, min_term=1, max_term=9)
LEVELS: Mapping[str, Level | Mixture] = {
    "easy": EASY,
    "medium": Level(min_terms=5, max_terms=6, min_term=1, max_term=9),
    "carry": Level(min_terms=5, max_terms=6, min_term=1, max_term=9, min_carries=2),
    "hard": Level(min_terms=6, max_terms=8, min_term=10, max_term=99),
    # Solutions of 9 tokens, of about 25, and of 37 and more. So a fifth is more than four times as long as the median,
    # and no chain has more numbers than the embedded model can keep apart, which are six.
    "mixed": Mixture(
        (
            (0.7, Level(min_terms=3, max_terms=4, min_term=1, max_term=9, almost_done=True)),
            (0.1, EASY),
            (0.2, Level(min_terms=6, max_terms=6, min_term=1, max_term=9, min_carries=2)),
        )
    ),
}


def draw_chains(level: Level | Mixture, num_chains: int, *, held_out: bool, rng: random.Random) -> list[Chain]:
    """Distinct chains of one side of the split, in the order drawn: asking for more only adds to the end."""
    chains: dict[Chain, None] = {}
    while len(chains) < num_chains:
        source = level.pick(rng) if isinstance(level, Mixture) else level
        while (chain := source.draw(rng)).held_out != held_out or chain in chains:
            pass
        chains[chain] = None
    return list(chains)
