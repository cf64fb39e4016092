"""Tells that draws by reward prefer the lucky, where rewards are random: once, and what to change."""

from __future__ import annotations

ENOUGH = 0.05
"""A difference of rewards that makes one of two equal responses this much likelier to be drawn is worth a word."""

_REMEDY = (
    "draws from the whole buffer prefer responses whose scores were lucky (equal responses are drawn by their mean): "
    "set buffer.uniform_fraction = 1, or let the reward return a mean of several scores"
)


class NoiseWatch:
    """`tilt` is the inverse temperature by which rewards tilt draws, 0 if they do not. `declared`: it is known that
    the reward gives equal responses different numbers."""

    def __init__(self, *, tilt: float, declared: bool) -> None:
        self._tilt = tilt
        self._declared = declared
        self._told = False

    def message(self, noise: float) -> str | None:
        """What to tell, the first time that there is something; `noise` is the largest difference that was seen
        between rewards of equal responses."""
        if self._told or not self._tilt or not (self._declared or noise * self._tilt > ENOUGH):
            return None
        self._told = True
        seen = f"equal responses got rewards that differ by {noise:.3g}" if noise else "the reward is random"
        return f"{seen}, and {_REMEDY}"
