"""Channels within one process, where Trainer and Searchers take turns: nobody ever has to wait."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tba.channels.base import Message
from tba.types import Version, WeightUpdate


class InlineWeights:
    """Both ends of the weight channel: the newest version."""

    def __init__(self) -> None:
        self.closed = False
        self.finished = False
        self._newest: WeightUpdate | None = None

    def publish(self, version: Version, tensors: Mapping[str, NDArray[np.uint8]], note: bytes = b"") -> None:
        self._newest = WeightUpdate(version, {name: tensor.copy() for name, tensor in tensors.items()}, note)

    def wait_for_first(self) -> None:
        """The Trainer's turn comes first."""

    def newer_than(self, version: Version) -> WeightUpdate | None:
        return self._newest if self._newest is not None and self._newest.version > version else None

    def close(self, finished: bool) -> None:
        self.closed = True
        self.finished = finished


class InlineGroups:
    """Both ends of the group channel: a list."""

    is_open = False
    """While the Trainer has its turn nobody sends."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def send(self, message: Message) -> None:
        self._messages.append(message)

    def receive(self, wait: bool = False) -> list[Message]:
        messages, self._messages = self._messages, []
        return messages
