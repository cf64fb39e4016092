"""Progress where there is no terminal: a line now and then, each with the time and with something new in it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tba.runs.phases import doing_text
from tba.runs.progress import RunProgress
from tba.runs.wording import clock, number

EVERY = ((120.0, 10.0), (600.0, 30.0), (float("inf"), 60.0))
"""Seconds between two lines, up to such a time on the clock."""
_LONG_SECONDS = 10.0


def seconds_between(now: float) -> float:
    """Two lines, at this time on the clock."""
    return next(seconds for until, seconds in EVERY if now < until)


class PlainLines:
    """Says when a line is due, and makes it."""

    def __init__(self) -> None:
        self._last = 0.0
        self._step = -1
        self._said = ""

    def due(self, now: float) -> bool:
        """`now`: what the clock shows."""
        self._last = self._last or now
        return now - self._last >= seconds_between(now)

    def line(self, now: float, progress: RunProgress | None, what: str, activities: Sequence[Mapping[str, Any]]) -> str:
        """With the numbers of a new step, or else with what goes on; empty if all is as it was. `what` goes on in
        the launcher."""
        self._last = now
        if progress is not None and progress.train and progress.step != self._step:
            self._step, said = progress.step, _numbers(progress)
        else:
            doing = [what] if what else [f"{a['process']}: {_lasting(a)}" for a in activities]
            said = " · ".join([*_reached(progress), *(doing or ["starting"])])
        is_news, self._said = said != self._said, said
        return f"{clock(now)} {said}" if is_news else ""


def _reached(progress: RunProgress | None) -> list[str]:
    return [f"step {progress.step}/{progress.num_steps}"] if progress is not None and progress.step else []


def _lasting(activity: Mapping[str, Any]) -> str:
    seconds = time.time() - activity["since"]
    return doing_text(activity) + (f" for {clock(seconds)}" if seconds >= _LONG_SECONDS else "")


def _numbers(progress: RunProgress) -> str:
    train, left = progress.train, progress.seconds_left
    phrases = [
        *_reached(progress),
        f"reward of new responses {number(progress.reward, '.3f')}",
        f"loss {number(train.get('loss'), '.3g')}",
        f"KL {number(progress.lately('kl'), '.2f')}",
        f"staleness {number(train['staleness/mean'], '.1f')}",
        f"{progress.tokens_per_second:,.0f} tok/s",
        *([f"{clock(left)} left"] if left is not None else []),
    ]
    return " · ".join(phrases)
