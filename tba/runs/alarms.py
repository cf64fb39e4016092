"""Alarms: one table of what can be seen to go wrong while a run goes on, with the sentence to say then.

The process that writes `train`, `search` and `eval` records looks at each of them. An alarm is an event, and is said
once until it clears: it is said again only after its measure was good for some records in a row. A new alarm is a new
row of `RULES` and a number in `alarm_measures`, and a section of the same name in docs/tuning.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tba.runs import alarm_measures as measures
from tba.runs.alarm_measures import Known, Record, Seen

ALARM, ALARM_CLEARED = "alarm", "alarm_cleared"


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
    """What is seen; `{value}` is what was measured."""
    remedy: str
    """What to change first, in a sentence."""
    metrics: tuple[str, ...]
    """The numbers in records that it rests on, the first of which tells most."""
    measured: str
    """How they become the one number, for docs/tuning.md."""
    raise_after: int = 1
    """Records in a row beyond the limit after which it is said."""
    clear_after: int = 10
    """Records in a row within the limit after which it is clear."""

    @property
    def limit_text(self) -> str:
        """`above 90 %`, as docs/tuning.md has it."""
        number = f"{self.limit:.0%}".replace("%", " %") if "%}" in self.sentence else f"{self.limit:g}"
        return f"{self.when} {number.replace('-', '−')}"

    @property
    def link(self) -> str:
        """Where the page is that says what to do."""
        return f"docs/tuning.md#{self.name.lower().replace(' ', '-')}"

    def is_bad(self, value: float) -> bool:
        return value > self.limit if self.when == "above" else value < self.limit

    def message(self, value: float) -> str:
        return f"{self.sentence.format(value=value)} {self.remedy} See {self.link}"


RULES = (
    Rule(
        "all rewards equal",
        "train",
        measures.groups_without_spread,
        *("above", 0.9),
        "In {value:.0%} of the groups all responses have the same reward, and such groups teach nothing.",
        "Check that the reward function tells good responses from bad ones, or set searcher.skip_equal_rewards.",
        ("frac_reward_zero_std", "reward_std"),
        "`frac_reward_zero_std`, mean of 10 steps; quiet once the reward has risen by a standard deviation, or more "
        "than 80 % of the responses are right",
    ),
    Rule(
        "nothing right",
        "search",
        measures.groups_without_success,
        *("above", 64),
        "After {value:.0f} groups no response has been right.",
        "Start with easier prompts or a better model, or give a reward for part of the way.",
        ("right",),
        "groups made while `right` has always been 0",
        clear_after=1,
    ),
    Rule(
        "responses cut off",
        "search",
        measures.cut_off,
        *("above", 0.5),
        "{value:.0%} of the responses are cut off at the length limit.",
        "Raise engine.max_new_tokens, or let the prompt or the reward ask for short answers.",
        ("completions/clipped_ratio",),
        "`completions/clipped_ratio`, mean of 5 reports",
    ),
    Rule(
        "rewards fail",
        "search",
        measures.failing_rewards,
        *("above", 0.25),
        "{value:.0%} of the new responses got no reward, because a function failed on them or returned None.",
        "Fix the function: the events reward_failed in metrics.jsonl say how it failed.",
        ("failed",),
        "`failed` as a share of the responses in 10 reports",
    ),
    Rule(
        "KL runs away",
        "search",
        measures.kl_without_reward,
        *("above", 2.0),
        "KL to the reference has grown {value:.1f}-fold in twenty reports, and the reward has not risen.",
        "Raise objective.beta or lower trainer.learning_rate.",
        ("kl",),
        "`kl` of 20 reports over that of the 20 before (2 nats at least), if `reward` did not rise",
    ),
    Rule(
        "gradient runs away",
        "train",
        measures.gradient_growth,
        *("above", 5.0),
        "The gradient norm is {value:.1f} times what it was in nearly all steps before.",
        "Lower trainer.learning_rate, or train on younger data.",
        ("grad_norm",),
        "median `grad_norm` of 5 steps over what 9 in 10 of the steps before did not exceed",
    ),
    Rule(
        "leaving its data",
        "train",
        measures.leaving_its_data,
        *("below", -1.0),
        "The policy moves away from the right answers it is trained on: their mean log π/μ is {value:.1f}.",
        "Lower trainer.learning_rate, or train on younger data.",
        ("log_pi_mu/right", "log_pi_mu/age_0"),
        "`log_pi_mu/right` less `log_pi_mu/age_0`, mean of 5 steps",
    ),
    Rule(
        "one response per prompt",
        "search",
        measures.different_responses,
        *("below", 1.5),
        "Searchers find nothing new: a prompt gets {value:.1f} different responses on average, and not all are right.",
        "Sample more widely with searcher.temperature_fraction, or raise objective.beta.",
        ("completions/distinct", "entropy"),
        "different responses to a prompt, mean of 10 reports; quiet while more than 90 % of them are right",
    ),
    Rule(
        "training above held-out",
        "search",
        measures.training_over_held_out,
        *("above", 0.5),
        "The reward on training prompts is more than {value:.1f} standard deviations above that on held-out prompts.",
        "Use more training prompts, or stop earlier.",
        ("reward",),
        "reward on training prompts less that on held-out prompts, in standard deviations of rewards, less twice the "
        "evaluation's standard error",
    ),
    Rule(
        "engine gap",
        "train",
        measures.engine_gap,
        *("above", 1.0),
        "Engine and Learner disagree on fresh data: the gap of their log-probabilities is {value:.1f} times the limit.",
        "Set engine.precision to float32.",
        ("engine_gap/mean",),
        "`engine_gap/mean`, mean of 5 steps, divided by 0.01 (float32), 0.1 (bfloat16) or 0.6 (int8)",
    ),
    Rule(
        "nothing overlaps",
        "train",
        measures.overlap,
        *("below", 0.1),
        "Search and training take turns: they overlap in {value:.0%} of the time in which they could.",
        "See with tba status what they wait for, or set trainer.synchronous.",
        ("overlap/share",),
        "the overlap of search and training over 30 steps, from step 50 on",
    ),
)
"""All alarms. Each has a section in docs/tuning.md, a link from a metric in docs/metrics.md, and a test of it."""


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
