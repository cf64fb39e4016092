"""How long Searchers searched while the Trainer trained: whether the two really work at the same time.

Every Searcher shows how long it has been searching so far (`runs/activity.py`). The Trainer looks at that when a step
begins and when it ends, so the difference is the time of the step in which the Searcher searched too; nothing is
sampled. Where there are several Searchers, the one that searched longest counts: at least so long one of them did.
"Searching" is generating responses, reading them with the reference model, and evaluating. Both processes having work
does not mean that each has a core: where cores are too few, they share one and both count as working.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tba.runs.activity import TRAINER, OpenActivities, seconds_searched


class Overlap:
    """Of one run, from its first step in this process on."""

    def __init__(self, run: Path) -> None:
        self._activities = OpenActivities(run)
        self._totals: dict[tuple[str, int], float] | None = None
        self._values: dict[str, float] = {}

    @contextmanager
    def training(self) -> Iterator[None]:
        """Around a step."""
        before = self._searched()
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        both = min(self._searched(), seconds)
        self._values = {
            "overlap/share": both / max(seconds, 1e-9),
            "overlap/both_seconds": round(both, 4),
            "overlap/search_seconds": round(before + both, 4),
            "overlap/train_seconds": round(seconds, 4),
        }

    def values(self) -> dict[str, float]:
        """Of the last step, and of the time since the one before it. Empty where no Searcher has a process of its own:
        those that take turns do not overlap."""
        return self._values if self._totals else {}

    def close(self) -> None:
        self._activities.close()

    def _searched(self) -> float:
        """Seconds that the busiest Searcher has been searching since the last look; 0 at the first."""
        now = time.time()
        found = {
            (a["process"], a["pid"]): seconds_searched(a, now)
            for a in self._activities.read()
            if a["process"] != TRAINER and a["pid"] != os.getpid() and "searched" in a
        }
        before, self._totals = self._totals, (self._totals or {}) | found
        if before is None:
            return 0.0
        return max((total - before.get(who, 0.0) for who, total in found.items()), default=0.0)


def overlap_fraction(train: Sequence[Mapping[str, Any]]) -> float | None:
    """Time in which search and training went on at once, as a share of the time of whichever had less to do: 1 if it
    always worked beside the other, 0 if they took turns. None if these `train` records do not say."""
    told = [r for r in train if "overlap/both_seconds" in r]
    both, searched, trained = (sum(r[f"overlap/{name}_seconds"] for r in told) for name in ("both", "search", "train"))
    less = min(searched, trained)
    return round(both / less, 5) if less > 0 else 0.0 if told else None
