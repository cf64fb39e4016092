"""Time that passes when told to."""

from __future__ import annotations


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def pass_seconds(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now
