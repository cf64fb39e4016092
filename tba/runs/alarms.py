"""Alarms: one table of what can be seen to go wrong while a run goes on, with the sentence to say then.

The process that writes `train`, `search` and `eval` records looks at each of them. An alarm is an event, and is said
once until it clears: it is said again only after its measure was good for some records in a row. A new alarm is a new
row of `RULES`, and a section of the same name in docs/tuning.md, which its sentence points to.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tba.runs.overlap import overlap_fraction

Record = Mapping[str, Any]

ALARM, ALARM_CLEARED = "alarm", "alarm_cleared"
_KEPT = 100  # records of each kind that rules can look back on
USUAL_GAP = {"float32": 0.01, "bfloat16": 0.1, "int8": 0.6}
"""By the coarser of two precisions: how far the log-probabilities of engine and Learner may be apart, per token."""
OVERLAP_STEPS, WARM_UP_STEPS = 30, 20
"""The overlap is that of so many steps, and the first steps do not count: Searchers may still be starting."""


@dataclass(frozen=True)
class Known:
    """What rules must know of a run besides its records."""

    num_responses: int = 16
    """To a prompt."""
    is_asynchronous: bool = False
    """Searchers and the Trainer are meant to work at the same time."""
    precisions: tuple[str, ...] = ("float32",)
    """Of engine and Learner."""
    explores_hotter: bool = False
    """Searchers sample some responses at another temperature than the policy's, or leave unlikely tokens out."""

    @property
    def usual_gap(self) -> float:
        return max(USUAL_GAP[precision] for precision in self.precisions)


class Seen:
    """The newest records of a run, by kind, and what is known of it."""

    def __init__(self, known: Known) -> None:
        self.known = known
        self.num: Counter[str] = Counter()
        """How many records of each kind there were."""
        self.largest_reward_std = 0.0
        self._records: dict[str, deque[Record]] = {}

    def add(self, record: Record) -> None:
        self.num[record["kind"]] += 1
        self._records.setdefault(record["kind"], deque(maxlen=_KEPT)).append(record)
        if record["kind"] == "search":
            self.largest_reward_std = max([self.largest_reward_std, *_numbers([record], "reward_std")])

    def records(self, kind: str) -> Sequence[Record]:
        """Oldest first."""
        return list(self._records.get(kind, ()))

    def mean(self, kind: str, name: str, count: int, *, at_least: int | None = None) -> float | None:
        """Of a number over the last `count` records that have it; None if fewer than `at_least` do."""
        found = _numbers(self.records(kind), name)[-count:]
        return sum(found) / len(found) if len(found) >= (count if at_least is None else at_least) else None


@dataclass(frozen=True)
class Rule:
    """One alarm."""

    name: str
    kind: str
    """Of the records after which it is looked at."""
    measure: Callable[[Seen], float | None]
    """What is compared with the limit. None: it cannot be told now, and nothing changes."""
    when: Literal["above", "below"]
    limit: float
    sentence: str
    """What to say; `{value}` is what was measured."""
    raise_after: int = 1
    """Records in a row beyond the limit after which it is said."""
    clear_after: int = 10
    """Records in a row within the limit after which it is clear."""

    @property
    def link(self) -> str:
        """Where the page is that says what to do."""
        return f"docs/tuning.md#{self.name.replace(' ', '-')}"

    def is_bad(self, value: float) -> bool:
        return value > self.limit if self.when == "above" else value < self.limit

    def message(self, value: float) -> str:
        return f"{self.sentence.format(value=value)} See {self.link}"


def _leaving_its_data(seen: Seen) -> float | None:
    """The mean log π/μ of right answers, without the difference that fresh data show already: coarser products, or
    another temperature, are no drift."""
    drift = seen.mean("train", "log_pi_mu/right", 5)
    fresh = seen.mean("train", "log_pi_mu/age_0", 20, at_least=1)
    has_offset = seen.known.explores_hotter or "int8" in seen.known.precisions
    if drift is None or (fresh is None and has_offset):
        return None
    return drift - (fresh or 0.0)


def _different_responses(seen: Seen) -> float | None:
    """Different responses to a prompt. Where nearly all are right there is no harm in giving but one."""
    distinct, right = seen.mean("search", "completions/distinct", 10), seen.mean("search", "right", 10)
    if distinct is None:
        return None
    return math.inf if right is not None and right > 0.9 else distinct * seen.known.num_responses


def _training_over_held_out(seen: Seen) -> float | None:
    """How far the reward on training prompts is above that on held-out ones, in standard deviations of rewards, less
    twice the standard error of an evaluation of so many prompts. Training prompts are those of the reports just before
    and just after the weights that were evaluated, whichever are worse: a run that rises or falls is no gap."""
    evals = seen.records("eval")
    held_out = _numbers(evals[-1:], "reward")
    if not held_out or not seen.largest_reward_std:
        return None
    version, num_prompts = evals[-1]["version"], evals[-1].get("num_prompts") or 1
    before = _numbers([r for r in seen.records("search") if r["version"] < version], "reward")[-5:]
    after = _numbers([r for r in seen.records("search") if r["version"] >= version], "reward")[:5]
    if len(before) < 5 or len(after) < 5:
        return None
    training = min(sum(before), sum(after)) / 5
    return (training - held_out[0]) / seen.largest_reward_std - 2 / math.sqrt(num_prompts)


def _engine_gap(seen: Seen) -> float | None:
    """The engine's gap in units of what the precisions explain."""
    gap = seen.mean("train", "engine_gap/mean", 5)
    return None if gap is None or seen.known.explores_hotter else gap / seen.known.usual_gap


def _overlap(seen: Seen) -> float | None:
    if not seen.known.is_asynchronous or seen.num["train"] < WARM_UP_STEPS + OVERLAP_STEPS:
        return None
    return overlap_fraction(seen.records("train")[-OVERLAP_STEPS:])


RULES = (
    Rule(
        "leaving its data",
        "train",
        _leaving_its_data,
        *("below", -1.0),
        "The policy moves away from the right answers it is trained on: their mean log π/μ is {value:.1f}.",
    ),
    Rule(
        "one response per prompt",
        "search",
        _different_responses,
        *("below", 1.5),
        "Searchers find nothing new: a prompt gets {value:.1f} different responses on average, and not all are right.",
    ),
    Rule(
        "training above held-out",
        "search",
        _training_over_held_out,
        *("above", 0.5),
        "The reward on training prompts is more than {value:.1f} standard deviations above that on held-out prompts.",
    ),
    Rule(
        "engine gap",
        "train",
        _engine_gap,
        *("above", 1.0),
        "Engine and Learner disagree on fresh data: the gap of their log-probabilities is {value:.1f} times the limit.",
    ),
    Rule(
        "nothing overlaps",
        "train",
        _overlap,
        *("below", 0.1),
        "Search and training take turns: they overlap in {value:.0%} of the time in which they could.",
    ),
)
"""All alarms. Each has a section in docs/tuning.md and a test that makes it go off."""


class Alarms:
    """Looks at the records of one run, from now on."""

    def __init__(self, known: Known, rules: Sequence[Rule] = RULES) -> None:
        self._seen = Seen(known)
        self._rules = rules
        self._raised: set[str] = set()
        self._in_a_row: Counter[str] = Counter()
        """By rule: records in a row that speak against what stands."""

    def look(self, record: Record) -> list[dict[str, Any]]:
        """Take in a record; events to write, if an alarm has to be said or is clear again."""
        self._seen.add(record)
        return [event for rule in self._rules if rule.kind == record["kind"] for event in self._changes(rule)]

    def _changes(self, rule: Rule) -> Iterator[dict[str, Any]]:
        value = rule.measure(self._seen)
        if value is None:
            return
        is_raised = rule.name in self._raised
        self._in_a_row[rule.name] = self._in_a_row[rule.name] + 1 if rule.is_bad(value) != is_raised else 0
        if self._in_a_row[rule.name] < (rule.clear_after if is_raised else rule.raise_after):
            return
        self._in_a_row[rule.name] = 0
        self._raised ^= {rule.name}
        if is_raised:
            yield {"event": ALARM_CLEARED, "alarm": rule.name}
        else:
            yield {"event": ALARM, "alarm": rule.name, "message": rule.message(value)}


def raised(records: Sequence[Record]) -> dict[str, str]:
    """The alarms that stand after these records, by name, with their messages. A resumed run begins without."""
    found: dict[str, str] = {}
    for record in records:
        if record.get("event") == ALARM:
            found[record["alarm"]] = record["message"]
        elif record.get("event") == ALARM_CLEARED:
            found.pop(record["alarm"], None)
        elif record.get("event") == "resumed":
            found.clear()
    return found


def _numbers(records: Sequence[Record], name: str) -> list[float]:
    values = (record.get(name) for record in records)
    return [float(value) for value in values if value is not None and math.isfinite(value)]
