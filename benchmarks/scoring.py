"""Rewards overlap with generation: what a Searcher makes when its reward sleeps half a second a group.

The weights hardly move, so that both runs generate responses of one kind: a surer model's have more in common, which
makes them cheaper, and a run whose first scores come later would be compared at another stage of learning.
"""

from __future__ import annotations

from benchmarks.report import Row, at_least, ratio_of
from benchmarks.runs import Finished, run_embedded

SETTLED_SECONDS = 6.0
"""Left out at the start, while reward processes are being started."""


def run(full: bool) -> list[Row]:
    slow, quick = [], []
    for _ in range(3 if full else 1):
        slow.append(_tokens_a_second(_run("slow", full)))
        quick.append(_tokens_a_second(_run("quick", full)))
    ratio, spread = ratio_of(slow, quick)
    return [
        at_least(
            0.9,
            "generated tokens/s, a reward that sleeps 0.5 s a group, embedded model",
            f"{slow[0]:,.0f} tok/s",
            f"a reward that does not, {quick[0]:,.0f} tok/s",
            ratio,
            spread,
        )
    ]


def _run(reward: str, full: bool) -> Finished:
    steps = 120 if full else 80
    return run_embedded(
        trainer={"num_steps": steps, "learning_rate": 1e-9}, reward={"functions": f"benchmarks.rewards:{reward}"}
    )


def _tokens_a_second(finished: Finished) -> float:
    reports = [r for r in finished.search if r["time"] >= finished.search[0]["time"] + SETTLED_SECONDS]
    tokens: int = sum(r["tokens"] for r in reports[1:])
    return tokens / float(reports[-1]["time"] - reports[0]["time"])
