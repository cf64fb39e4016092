"""The epochs of a run and the ages of its data: how many optimizer steps lie between two versions of the weights.

A run that is resumed makes other weights than it made before, unless its launcher repeats them. Versions of the two
must not be confused, so each such resume begins a new epoch, which forks from the checkpoint's version. Epochs form a
tree. Data of an abandoned branch stay in the buffer, and their age counts the steps back to the fork and on from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tba.types import Steps, TbaError, Version

EPOCHS = "epochs.json"


class Epochs:
    """The tree: for each epoch after 0, the version it forked from.

    A step before the fork of its epoch names the weights of the parent at that step: they are on the same line.
    """

    def __init__(self, forks: Mapping[int, Version] | None = None) -> None:
        self._forks = dict(forks or {})

    @property
    def newest(self) -> int:
        return max(self._forks, default=0)

    def branch(self, from_: Version) -> Version:
        """Begin a new epoch at the weights of this version. Its number was never used before."""
        version = Version(self.newest + 1, from_.step)
        self._forks[version.epoch] = from_
        return version

    def age(self, version: Version, now: Version) -> int:
        """Optimizer steps between the two weights: back to the last step they have in common, and on from there."""
        common = self._last_common_step(version, now)
        return (version.step - common) + (now.step - common)

    def fresh(self, now: Version, limit: int) -> dict[int, Steps]:
        """For each epoch, the steps whose weights have at most the age `limit`; the range may be empty.

        On the line of `now` the age of a step falls towards `now`; beyond a fork it rises again.
        """
        first = now.step - limit
        ranges = {now.epoch: Steps(first, None)}
        for epoch in {0, *self._forks} - {now.epoch}:
            # Where the two lines part: not after `now`, so no later step of the epoch need be asked.
            common = self._last_common_step(Version(epoch, now.step), now)
            ranges[epoch] = Steps(first, 2 * common - first)
        return ranges

    @classmethod
    def read(cls, run: Path) -> Epochs:
        """Those of a run; a run without the file has epoch 0 only. TbaError if the file is damaged."""
        path = run / EPOCHS
        try:
            stored = json.loads(path.read_text("utf-8"))
            return cls({int(epoch): Version(fork["epoch"], fork["step"]) for epoch, fork in stored.items()})
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError):
            raise TbaError(f"{path} is damaged: restore it from a copy, or start a new run") from None

    def write(self, run: Path) -> None:
        """Safe on disk when this returns: call it before a version of a new epoch is published."""
        partial = run / f".{EPOCHS}.partial"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({epoch: fork._asdict() for epoch, fork in self._forks.items()}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, run / EPOCHS)
        descriptor = os.open(run, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _last_common_step(self, one: Version, other: Version) -> int:
        if one.epoch == other.epoch:
            return min(one.step, other.step)
        ours, theirs = self._line(one), self._line(other)
        return max(min(ours[epoch], theirs[epoch]) for epoch in ours.keys() & theirs.keys())

    def _line(self, version: Version) -> dict[int, int]:
        """The epochs on the way from a version to the beginning of the run, each with its last step on it."""
        epoch, step = version
        line = {epoch: step}
        while epoch:
            if epoch not in self._forks:
                raise TbaError(f"the data of this run name epoch {epoch}, which {EPOCHS} does not: restore that file")
            fork = self._forks[epoch]
            epoch, step = fork.epoch, min(step, fork.step)
            line[epoch] = step
        return line
