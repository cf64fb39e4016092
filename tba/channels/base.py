"""The two channels between Trainer and Searchers: weights go down, groups and reports come up.

Searcher and Trainer hold these and nothing else of each other, so a launcher may connect them in any way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tba.types import Group, Report, ScoredGroup, Unused, Version, WeightUpdate

Message = Group | ScoredGroup | Unused | Report


class WeightPublisher(Protocol):
    """The Trainer's end."""

    def publish(self, version: Version, tensors: Mapping[str, NDArray[np.uint8]], note: bytes = b"") -> None:
        """Make a version available, and with it a note. Returns once the tensors may change again."""
        ...

    def close(self, finished: bool) -> None:
        """Tell the Searchers that no version will follow: the run has finished, or was stopped early."""
        ...


class WeightSubscriber(Protocol):
    """A Searcher's end. Nothing else is asked of it before `wait_for_first` has returned."""

    def wait_for_first(self) -> None:
        """Wait until the Trainer has published something."""
        ...

    @property
    def closed(self) -> bool: ...

    @property
    def finished(self) -> bool: ...

    def newer_than(self, version: Version) -> WeightUpdate | None:
        """The newest version if it is newer than this, whole and checked; never a half-written one."""
        ...


class GroupSender(Protocol):
    """A Searcher's end. `send` may wait when the receiver is far behind: memory stays bounded."""

    def send(self, message: Message) -> None: ...


class GroupReceiver(Protocol):
    """The Trainer's end."""

    def receive(self, wait: bool = False) -> list[Message]:
        """All that has arrived since the last call. With `wait`, gives senders a moment if that is nothing."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether anybody may still send. What was sent before the last one hung up is still to be received."""
        ...
