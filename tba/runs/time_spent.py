"""Where the time of each process went: work, waiting and publishing add up to the time since it was started."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tba.runs.activity import PUBLISHING, TRAINER, WAITING, Activity

SECONDS = "seconds/"
"""What names of activities begin with in records."""
PROCESS_SECONDS = "process_seconds"
"""In a record: the time since its process was started, measured by the same clock as the activities."""


@dataclass(frozen=True)
class TimeSpent:
    """Of one process, or of several together."""

    busy: float = 0.0
    wait: float = 0.0
    publish: float = 0.0
    wall: float = 0.0

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> TimeSpent:
        """Up to the time of a record that says what its process has spent."""
        spent = {name.removeprefix(SECONDS): value for name, value in record.items() if name.startswith(SECONDS)}
        return cls(
            busy=sum(value for kind, value in spent.items() if kind not in WAITING | PUBLISHING),
            wait=sum(value for kind, value in spent.items() if kind in WAITING),
            publish=sum(value for kind, value in spent.items() if kind in PUBLISHING),
            wall=record[PROCESS_SECONDS],
        )

    @classmethod
    def total(cls, parts: Iterable[TimeSpent]) -> TimeSpent:
        listed = list(parts)
        return cls(*(sum(getattr(part, name) for part in listed) for name in ("busy", "wait", "publish", "wall")))

    def values(self, prefix: str) -> dict[str, float]:
        names = ("busy", "wait", "publish", "wall")
        return {f"{prefix}{name}_seconds": round(getattr(self, name), 3) for name in names}


def time_record(activity: Activity) -> dict[str, float]:
    """What a record says of the time of its process so far."""
    so_far = {f"{SECONDS}{kind}": round(total, 4) for kind, total in activity.seconds().items()}
    return {**so_far, PROCESS_SECONDS: round(activity.seconds_since_start(), 4)}


def time_spent(records: Sequence[Mapping[str, Any]]) -> dict[str, TimeSpent]:
    """Of every process, by its name. One that was started again under the same name, as the Trainer is by a resume,
    has the time of all its lives up to their last record."""
    lives: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        if PROCESS_SECONDS in record:
            own = lives.setdefault(TRAINER if record["kind"] == "train" else record["source"], [])
            if own and record[PROCESS_SECONDS] >= own[-1][PROCESS_SECONDS]:
                own.pop()
            own.append(record)
    return {name: TimeSpent.total(map(TimeSpent.read, own)) for name, own in lives.items()}


def time_values(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """As `summary.json` has it: of the Trainer, of all Searchers together, and of each process."""
    spent = time_spent(records)
    trainer = spent.get(TRAINER, TimeSpent())
    searchers = TimeSpent.total(of for name, of in spent.items() if name != TRAINER)
    each = (of.values(f"processes/{name}/") for name, of in spent.items())
    return {
        **trainer.values("trainer_"),
        **searchers.values("searchers_"),
        **{name: value for values in each for name, value in values.items()},
    }
