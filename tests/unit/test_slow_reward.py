"""The reward of the benchmarks that takes time: how long, by its law, without waiting."""

from __future__ import annotations

import asyncio
import math

import pytest

from benchmarks import slow_reward
from benchmarks.slow_reward import MAX_SECONDS, latency, seconds_at


def test_the_quantiles_are_as_stated() -> None:
    assert seconds_at(0.5) == pytest.approx(1.0, abs=1e-12)
    assert seconds_at(0.95) == pytest.approx(6.0, rel=1e-12)
    assert seconds_at(0.05) == pytest.approx(1 / 6, rel=1e-12), "a lognormal is symmetric in the logarithm"


def test_texts_take_the_quantiles_evenly() -> None:
    """The share of 4,000 texts below each quantile, to five standard errors; the texts are fixed."""
    waits = [latency(f"text {number}") for number in range(4_000)]
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        found = sum(wait <= seconds_at(share) for wait in waits) / len(waits)
        assert abs(found - share) < 5 * math.sqrt(share * (1 - share) / len(waits)), share
    assert min(waits) > 0
    assert max(waits) <= MAX_SECONDS


def test_the_same_responses_wait_as_long_and_score_as_the_task_scores_them(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(slow_reward.asyncio, "sleep", sleep)
    group = (["1+1=\n"] * 2, ["1+1=2\n#### 2", "#### 3"], ["2", "2"])
    assert asyncio.run(slow_reward.judge(*group)) == [1.0, 0.0]
    assert asyncio.run(slow_reward.judge(*group, num_terms=[2, 2])) == [1.0, 0.0]
    asyncio.run(slow_reward.judge(["1+2=\n"] * 2, *group[1:]))
    assert waited[0] == waited[1] != waited[2]
