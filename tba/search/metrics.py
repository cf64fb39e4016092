"""What a Searcher counts between two reports: the numbers of one `search` record."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tba.rewards.scorer import Scores
from tba.types import Response, TokenLogprobs, Version


class SearchTally:
    def __init__(self, success_reward: float = 0.5) -> None:
        """A response is right if its reward is above `success_reward`."""
        self._success_reward = success_reward
        self._sums: dict[str, float] = defaultdict(float)
        self._rewards: list[float] = []
        self._given: dict[str, list[float]] = {}
        """What each function gave, without the responses it failed on or did not apply to."""
        self._reported: dict[str, list[float]] = defaultdict(list)
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._since

    @property
    def is_empty(self) -> bool:
        return not self._sums

    def count(
        self,
        responses: Sequence[Response],
        reference: Sequence[TokenLogprobs],
        scores: Scores,
        reward_names: Sequence[str],
        *,
        on_policy: bool = True,
    ) -> None:
        """Take in one group, used or not. Without a view of the reference it does not count towards KL."""
        sums = self._sums
        rewards = [reward for reward in scores.rewards if reward is not None]
        sums["groups"] += 1
        sums["responses"] += len(responses)
        sums["tokens"] += sum(len(r) for r in responses)
        sums["finished"] += sum(r.finished for r in responses)
        sums["scored"] += len(rewards)
        sums["failed"] += len(responses) - len(rewards) - scores.num_left_out
        sums["reward"] += sum(rewards)
        self._rewards += rewards
        sums["right"] += sum(reward > self._success_reward for reward in rewards)
        sums["distinct"] += len({r.tokens.tobytes() for r in responses}) / len(responses)
        if on_policy:
            sums["sampled_tokens"] += sum(r.num_written for r in responses)
            sums["logprob"] += sum(r.logprob for r in responses)
        if on_policy and reference:
            sums["on_policy"] += len(responses)
            sums["log_ratio"] += sum(
                r.logprob - float(view.sum(dtype=np.float64)) for r, view in zip(responses, reference, strict=True)
            )
        for name, values in zip(reward_names, zip(*scores.parts, strict=True), strict=True):
            self._given.setdefault(name, []).extend(value for value in values if not math.isnan(value))
        for name, value in scores.metrics.items():
            self._reported[name].append(value)

    def count_dropped_group(self) -> None:
        self._sums["groups_dropped"] += 1

    def count_skipped_group(self) -> None:
        self._sums["groups_skipped"] += 1

    def values(self, version: Version, so_far: Mapping[str, float]) -> dict[str, Any]:
        """The record; `so_far` is what it says of all the time since the Searcher was started."""
        sums, seconds = self._sums, max(self.seconds, 1e-9)
        scored, responses = max(1.0, sums["scored"]), max(1.0, sums["responses"])
        return {
            **version.record(),
            **{name: int(sums[name]) for name in ("groups", "groups_dropped", "groups_skipped", "tokens", "failed")},
            "tokens_per_second": sums["tokens"] / seconds,
            "reward": sums["reward"] / scored,
            "reward_std": float(np.std(self._rewards)) if self._rewards else None,
            "right": sums["right"] / sums["scored"] if sums["scored"] else None,
            # Of samples of the policy itself, so this is an unbiased estimate of KL(policy ‖ reference).
            "kl": sums["log_ratio"] / sums["on_policy"] if sums["on_policy"] else None,
            # The mean of −log p over tokens drawn from p itself: the entropy of what the engine samples from.
            "entropy": -sums["logprob"] / sums["sampled_tokens"] if sums["sampled_tokens"] else None,
            "completions/distinct": sums["distinct"] / max(1.0, sums["groups"]),
            "completions/mean_length": sums["tokens"] / responses,
            "completions/clipped_ratio": 1 - sums["finished"] / responses,
            **{f"rewards/{name}": sum(values) / len(values) for name, values in self._reported.items()},
            **{
                f"rewards/{name}/mean": sum(given) / len(given) if given else None
                for name, given in self._given.items()
            },
            **so_far,
        }
