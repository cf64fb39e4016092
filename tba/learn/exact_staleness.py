"""Which version of the weights makes the groups of which step, when all data are to have one age.

With age n, and steps that are told by the number of updates made before them:

    step      0    1    …    n    n+1   n+2   …
    version   0    0    …    0     1     2    …      the weights that made its groups
    age       0    1    …    n     n     n    …

Version 0 makes the groups of n + 1 steps, every other version those of one step, and every group is used once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tba.learn.checkpoint import Checkpoint


@dataclass(frozen=True)
class ExactStaleness:
    """The schedule of a run from version `first` on: 0, or that of a checkpoint from which ages begin anew."""

    staleness: int
    num_groups: int
    """Of a step."""
    num_steps: int
    first: int = 0

    def due(self, num_made: int) -> int:
        """The version whose groups the next step is trained on, once so many updates are made."""
        return max(self.first, num_made - self.staleness)

    def owed(self, version: int) -> int:
        """Groups that are made of a version in all: those of the steps of the run that are trained on it."""
        steps = range(version, min(version + self.staleness + 1, self.num_steps))
        return self.num_groups * sum(self.due(num_made) == version for num_made in steps)

    def missing(self, num_made: int, waiting: Counter[int]) -> Counter[int]:
        """What the coming steps need of versions that cannot be explored any more, beyond the groups that wait."""
        steps = range(num_made, min(num_made + self.staleness, self.num_steps))
        past = [version for version in map(self.due, steps) if version < num_made]
        return Counter({version: self.num_groups * n for version, n in Counter(past).items()}) - waiting

    def resumed_from(self, checkpoint: Checkpoint, *, repeatable: bool) -> ExactStaleness:
        """The schedule of a run that goes on from a checkpoint; Searchers and the Trainer find the same.

        Older weights are gone then. Ages go on as they were if the checkpoint has all groups that were to be made with
        them, and what follows is made again as it was (`repeatable`). Else they begin anew: the checkpoint's version is
        the first then, and age n is reached after n steps.
        """
        anew = replace(self, first=checkpoint.step)
        if not repeatable:
            return anew  # its files are not read: they may be gone when a Searcher is started again
        queue = checkpoint.state().get("queue")
        if queue is None:
            return anew
        going_on = replace(self, first=queue["first"])
        waiting = Counter(version for version, _ in queue["waiting"])
        return anew if going_on.missing(checkpoint.step, waiting) else going_on
