"""Where the groups of a step come from: the replay buffer, or a queue in which all data reach one age.

The Trainer merges into a supply and draws from it, and does not know which it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tba.buffer.ledger import RowLedger
from tba.buffer.log import RolloutLog
from tba.buffer.sampling import Draw
from tba.runs.activity import Doing
from tba.types import Group, Version


class Supply(Protocol):
    """What has been merged, and which of it the next step is trained on."""

    @property
    def ledger(self) -> RowLedger:
        """What became of every trajectory that was merged."""
        ...

    def extend(self, groups: Sequence[Group]) -> None:
        """Take in one merge. Merges come as they are in the rollout log."""
        ...

    def new_events(self) -> list[dict[str, Any]]:
        """What the merges so far gave reason to tell the user, each once."""
        ...

    def has_enough(self, now: Version) -> bool:
        """Whether the step that is made on these weights has its groups. Drops what no step will be trained on."""
        ...

    def lacks(self) -> Doing:
        """What the Trainer is doing while there is not enough, and how far that is."""
        ...

    def draw(self, now: Version, rng: np.random.Generator) -> Draw:
        """The groups of the step that is made on these weights."""
        ...

    def is_explored(self, version: Version) -> bool:
        """Whether the Searchers may go on to weights that are newer than these."""
        ...

    def values(self) -> dict[str, Any]:
        """What it holds, as a record of a step has it."""
        ...

    def ledger_values(self) -> dict[str, Any]:
        """What became of all that came, as the record of the end has it."""
        ...

    def state(self) -> dict[str, Any]:
        """What `refill` needs besides the log, as JSON takes it."""
        ...

    def refill(self, log: RolloutLog, state: Mapping[str, Any], now: Version) -> None:
        """Be as it was at a checkpoint of this state, then take in what the log has beyond its `log_position`."""
        ...
