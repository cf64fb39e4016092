"""What alarms are measured by: the newest records of a run, and one number of them for each rule (`alarms.RULES`)."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tba.runs.overlap import overlap_fraction

Record = Mapping[str, Any]

_KEPT = 100  # records of each kind that rules can look back on
USUAL_GAP = {"float32": 0.01, "bfloat16": 0.1, "int8": 0.6}
"""By the coarser of two precisions: how far the log-probabilities of engine and Learner may be apart, per token."""
OVERLAP_STEPS, WARM_UP_STEPS = 30, 20
"""The overlap is that of so many steps, and the first steps do not count: Searchers may still be starting."""
KL_REPORTS = 20
EQUAL = 1e-9
"""A standard deviation of rewards up to this is that of one constant."""


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
    is_graded: bool = True
    """A response is right or wrong. False: the reward is a number whose scale is its author's."""

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
        self.num_groups = 0
        """That Searchers have made."""
        self.any_right = False
        self.first_reward: float | None = None
        self._records: dict[str, deque[Record]] = {}

    def add(self, record: Record) -> None:
        self.num[record["kind"]] += 1
        self._records.setdefault(record["kind"], deque(maxlen=_KEPT)).append(record)
        if record["kind"] == "search":
            self.largest_reward_std = max([self.largest_reward_std, *numbers([record], "reward_std")])
            if self.first_reward is None:
                self.first_reward = next(iter(numbers([record], "reward")), None)
            self.num_groups += record.get("groups") or 0
            self.any_right |= any(numbers([record], "right"))

    def records(self, kind: str) -> Sequence[Record]:
        """Oldest first."""
        return list(self._records.get(kind, ()))

    def mean(self, kind: str, name: str, count: int, *, at_least: int | None = None) -> float | None:
        """Of a number over the last `count` records that have it; None if fewer than `at_least` do."""
        found = numbers(self.records(kind), name)[-count:]
        return sum(found) / len(found) if len(found) >= (count if at_least is None else at_least) else None


def leaving_its_data(seen: Seen) -> float | None:
    """The mean log π/μ of right answers, without the difference that fresh data show already: coarser products, or
    another temperature, are no drift."""
    drift = seen.mean("train", "log_pi_mu/right", 5)
    fresh = seen.mean("train", "log_pi_mu/age_0", 20, at_least=1)
    has_offset = seen.known.explores_hotter or "int8" in seen.known.precisions
    if drift is None or (fresh is None and has_offset):
        return None
    return drift - (fresh or 0.0)


def different_responses(seen: Seen) -> float | None:
    """Different responses to a prompt. Where nearly all are right there is no harm in giving but one."""
    distinct, right = seen.mean("search", "completions/distinct", 10), seen.mean("search", "right", 10)
    if distinct is None:
        return None
    return math.inf if right is not None and right > 0.9 else distinct * seen.known.num_responses


def training_over_held_out(seen: Seen) -> float | None:
    """How far the reward on training prompts is above that on held-out ones, in standard deviations of rewards, less
    twice the standard error of an evaluation of so many prompts. Training prompts are those of the reports just before
    and just after the weights that were evaluated, whichever are worse: a run that rises or falls is no gap."""
    evals = seen.records("eval")
    held_out = numbers(evals[-1:], "reward")
    if not held_out or not seen.largest_reward_std:
        return None
    version, num_prompts = evals[-1]["version"], evals[-1].get("num_prompts") or 1
    before = numbers([r for r in seen.records("search") if r["version"] < version], "reward")[-5:]
    after = numbers([r for r in seen.records("search") if r["version"] >= version], "reward")[:5]
    if len(before) < 5 or len(after) < 5:
        return None
    training = min(sum(before), sum(after)) / 5
    return (training - held_out[0]) / seen.largest_reward_std - 2 / math.sqrt(num_prompts)


def engine_gap(seen: Seen) -> float | None:
    """The engine's gap in units of what the precisions explain."""
    gap = seen.mean("train", "engine_gap/mean", 5)
    return None if gap is None or seen.known.explores_hotter else gap / seen.known.usual_gap


def overlap(seen: Seen) -> float | None:
    if not seen.known.is_asynchronous or seen.num["train"] < WARM_UP_STEPS + OVERLAP_STEPS:
        return None
    return overlap_fraction(seen.records("train")[-OVERLAP_STEPS:])


def groups_without_spread(seen: Seen) -> float | None:
    """The share of trained groups whose rewards are all equal. A run that has learnt its task has such groups, and
    where nothing is right, another rule says so."""
    if seen.known.is_graded and not seen.any_right and seen.num["search"]:
        return None
    share = seen.mean("train", "frac_reward_zero_std", 10, at_least=3)
    return 0.0 if share is not None and _has_learnt(seen) else share


def _has_learnt(seen: Seen) -> bool:
    """Rewards did vary, and now nearly all responses are right, or earn a standard deviation more than at first."""
    right, reward = (seen.mean("search", name, 10, at_least=1) for name in ("right", "reward"))
    if seen.largest_reward_std <= EQUAL or reward is None or seen.first_reward is None:
        return False
    is_right = seen.known.is_graded and right is not None and right > 0.8
    return is_right or reward > seen.first_reward + seen.largest_reward_std


def groups_without_success(seen: Seen) -> float | None:
    """How many groups there were, as long as no response of them was right."""
    if not seen.known.is_graded:
        return None
    return 0.0 if seen.any_right else float(seen.num_groups)


def cut_off(seen: Seen) -> float | None:
    return seen.mean("search", "completions/clipped_ratio", 5, at_least=3)


def kl_without_reward(seen: Seen) -> float | None:
    """By what factor the KL has grown from twenty reports to the next twenty, if the reward has not risen meanwhile.
    What is below two nats may grow as it likes."""
    kl, reward = (numbers(seen.records("search"), name)[-2 * KL_REPORTS :] for name in ("kl", "reward"))
    if len(kl) < 2 * KL_REPORTS or len(reward) < 2 * KL_REPORTS:
        return None
    before, after = (sum(part) / KL_REPORTS for part in (kl[:KL_REPORTS], kl[KL_REPORTS:]))
    has_gained = sum(reward[KL_REPORTS:]) > sum(reward[:KL_REPORTS])
    return 0.0 if has_gained else after / max(before, 2.0)


def gradient_growth(seen: Seen) -> float | None:
    """The median norm of five steps, in units of what nine tenths of the steps before did not exceed. So neither one
    large step counts, nor the first signal of a reward that is rarely earned."""
    norms = numbers(seen.records("train"), "grad_norm")
    latest, before = sorted(norms[-5:]), sorted(norms[:-5])
    if len(before) < 20:
        return None
    usual = before[int(0.9 * len(before))]
    return latest[2] / usual if usual else None


def failing_rewards(seen: Seen) -> float | None:
    """The share of new responses that got no reward."""
    records = seen.records("search")[-10:]
    num_failed = sum(record.get("failed") or 0 for record in records)
    num_responses = sum(record.get("groups") or 0 for record in records) * seen.known.num_responses
    return min(1.0, num_failed / num_responses) if num_responses >= 2 * seen.known.num_responses else None


def numbers(records: Sequence[Record], name: str) -> list[float]:
    values = (record.get(name) for record in records)
    return [float(value) for value in values if value is not None and math.isfinite(value)]
