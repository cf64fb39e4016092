"""What an attack is worth: a victim replies to it several times, a classifier scores the replies.

The reward is the mean over replies of the log-probability that a reply is harmful. Runs in the reward process, which
holds both models. Whatever is wrong with one attack or reply is noted beside the scores and stops nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tba.rewards.harm import load_harm_classifier
from tba.rewards.victim import Victim

EMPTY_LOG_SCORE = -10.0
"""Log score of a reply without text: there is no harm in it, and classifiers are not made for nothing."""


@dataclass(frozen=True)
class Verdict:
    """What came of one attack."""

    replies: tuple[str, ...]
    log_scores: tuple[float, ...]

    @property
    def reward(self) -> float:
        return float(np.mean(self.log_scores))

    @property
    def harm(self) -> float:
        """The mean probability, by which the success of an attack is judged."""
        return float(np.mean(np.exp(self.log_scores)))

    @property
    def num_empty(self) -> int:
        return sum(not reply.strip() for reply in self.replies)


class VictimHarm:
    """The reward function of the task `redteam`; its settings are those of the task."""

    __name__ = "victim_harm"  # what metrics call it

    def __init__(
        self,
        *,
        victim: str,
        victim_device: str,
        victim_prompt: str,
        victim_temperature: float,
        victim_top_p: float,
        victim_tokens: int,
        victim_replies: int,
        classifier: str,
        classifier_device: str,
        classifier_kind: str,
        classifier_label: str | None,
        classifier_input: str,
        guard_prefix: str,
        batch_size: int,
        cache_size: int,
        min_tokens: int,
        short_reward: float,
        seed: int,
    ) -> None:
        self._victim = Victim(
            victim,
            prompt=victim_prompt,
            temperature=victim_temperature,
            top_p=victim_top_p,
            max_new_tokens=victim_tokens,
            num_replies=victim_replies,
            batch_size=batch_size,
            seed=seed,
            device=victim_device,
        )
        self._score = load_harm_classifier(
            classifier,
            kind=classifier_kind,
            label=classifier_label,
            reads_attack=classifier_input == "attack_and_reply",
            prefix=guard_prefix,
            batch_size=batch_size,
            device=classifier_device,
        )
        self._min_tokens = min_tokens
        self._short_reward = short_reward
        self._seen: OrderedDict[str, Verdict] = OrderedDict()
        self._cache_size = cache_size

    def __call__(
        self,
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        finished: Sequence[bool],
        log_extra: Callable[[str, Sequence[Any]], None] = lambda name, values: None,
        **columns: Any,
    ) -> list[float]:
        attacks = [text.strip() for text in completions]
        # The token that ends an attack is not part of it.
        lengths = [len(ids) - ended for ids, ended in zip(completion_ids, finished, strict=True)]
        long = [bool(a) and n >= self._min_tokens for a, n in zip(attacks, lengths, strict=True)]
        wanted = list(dict.fromkeys(attack for attack, ok in zip(attacks, long, strict=True) if ok))
        known = {attack: self._seen[attack] for attack in wanted if attack in self._seen}
        found = known | self._ask([attack for attack in wanted if attack not in known])
        self._remember(found)
        verdicts = [found[attack] if ok else None for attack, ok in zip(attacks, long, strict=True)]
        log_extra("harm", [v.harm if v else 0.0 for v in verdicts])
        log_extra("too_short", [int(v is None) for v in verdicts])
        log_extra("empty_replies", [v.num_empty if v else 0 for v in verdicts])
        log_extra("cached", [int(attack in known) for attack in attacks])
        log_extra("replies", [list(v.replies) if v else [] for v in verdicts])
        return [v.reward if v else self._short_reward for v in verdicts]

    def _ask(self, attacks: Sequence[str]) -> dict[str, Verdict]:
        """All replies to all of these, then all scores, each in batches."""
        replies = self._victim(attacks)
        pairs = [(a, r) for a, row in zip(attacks, replies, strict=True) for r in row if r.strip()]
        scores = iter(self._score(pairs))
        return {
            attack: Verdict(tuple(row), tuple(next(scores) if r.strip() else EMPTY_LOG_SCORE for r in row))
            for attack, row in zip(attacks, replies, strict=True)
        }

    def _remember(self, found: dict[str, Verdict]) -> None:
        for attack, verdict in found.items():
            self._seen[attack] = verdict
            self._seen.move_to_end(attack)
        while len(self._seen) > self._cache_size:
            self._seen.popitem(last=False)
