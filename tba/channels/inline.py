"""Channels within one process, for the inline launcher: a publication runs the Searchers, one round of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tba.channels.base import Message
from tba.types import Version, WeightUpdate


class InlineWeights:
    """Both ends of the weight channel. `on_publish` is called once a version is there."""

    def __init__(self) -> None:
        self.on_publish: Callable[[], None] = lambda: None
        self.closed = False
        self.finished = False
        self._newest: WeightUpdate | None = None

    def publish(self, version: Version, tensors: Mapping[str, NDArray[np.uint8]]) -> None:
        self._newest = WeightUpdate(version, {name: tensor.copy() for name, tensor in tensors.items()})
        self.on_publish()

    def newer_than(self, version: Version) -> WeightUpdate | None:
        return self._newest if self._newest is not None and self._newest.version > version else None

    def close(self, finished: bool) -> None:
        self.closed = True
        self.finished = finished


class InlineGroups:
    """Both ends of the group channel: a list. `on_wait` runs Searchers when the Trainer waits, `on_drain` ends them."""

    def __init__(self) -> None:
        self.on_wait: Callable[[], None] = lambda: None
        self.on_drain: Callable[[], None] = lambda: None
        self._messages: list[Message] = []

    def send(self, message: Message) -> None:
        self._messages.append(message)

    def receive(self, wait: bool = False) -> list[Message]:
        if wait and not self._messages:
            self.on_wait()
        messages, self._messages = self._messages, []
        return messages

    def drain(self) -> list[Message]:
        self.on_drain()
        return self.receive()
