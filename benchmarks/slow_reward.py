"""A reward that takes time, as a judge or a sandbox does: the final answer's, after a wait with a long tail.

    tba train --reward benchmarks.slow_reward:judge

The wait of a group is lognormal, with a median of 1 second and a 95th percentile of 6 seconds. It is a function of the
prompt and its responses alone, so it repeats, whatever else is going on.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import xxhash

from tba.rewards.answer import final_answer

MEDIAN_SECONDS = 1.0
P95_SECONDS = 6.0
MAX_SECONDS = 20.0
"""One group in 330 would take longer. The time limit of a group, `reward.timeout_seconds`, is 30 seconds by default."""

_SPREAD = math.log(P95_SECONDS / MEDIAN_SECONDS) / NormalDist().inv_cdf(0.95)


async def judge(
    prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    await asyncio.sleep(latency(repr((prompts[0], tuple(completions)))))
    return final_answer(completions, answer)


def latency(text: str) -> float:
    """Seconds that judging this takes: a lognormal number that the text decides."""
    # The middle of one of 2**53 equal parts of (0, 1): neither end is ever met.
    share = ((xxhash.xxh3_64_intdigest(text.encode()) >> 11) + 0.5) / 2**53
    return min(MAX_SECONDS, seconds_at(share))


def seconds_at(share: float) -> float:
    """The quantile of the wait: this share of all groups takes at most so long."""
    return MEDIAN_SECONDS * math.exp(_SPREAD * NormalDist().inv_cdf(share))
