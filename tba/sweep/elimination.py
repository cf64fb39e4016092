"""Which arms go on to the next seed. Decided by values alone, so a sweep that is resumed decides the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tba.sweep.record import Result
from tba.sweep.settings import SweepSettings


@dataclass(frozen=True)
class Stopped:
    """An arm that got no further seeds, and why."""

    after_seeds: int
    reason: str


def hopeless(arms: Mapping[str, Sequence[Result]], sweep: SweepSettings) -> dict[str, Stopped]:
    """The arms to stop, of those that have all had the same seeds, by name.

    An arm is stopped if one of its runs failed, or if its mean is worse than the best arm's by more than
    `sweep.stop_margin`. All means are over the same seeds, so that no arm is judged by a lucky one.
    """
    stopped = {}
    for name, results in arms.items():
        failures = [f"seed {r.seed}: {r.failure}" for r in results if r.value is None]
        if failures:
            stopped[name] = Stopped(len(results), failures[0])
    means = {name: mean_of(results) for name, results in arms.items() if name not in stopped}
    if sweep.stop_margin is None or not means:
        return stopped
    best = min(means.values()) if sweep.minimize else max(means.values())
    for name, mean in means.items():
        num_seeds = len(arms[name])
        if num_seeds >= sweep.stop_after and abs(mean - best) > sweep.stop_margin:
            reason = f"{mean:.4g} is more than {sweep.stop_margin:g} worse than {best:.4g}, the best arm's"
            stopped[name] = Stopped(num_seeds, reason)
    return stopped


def mean_of(results: Sequence[Result]) -> float:
    values = [r.value for r in results if r.value is not None]
    return sum(values) / len(values)
