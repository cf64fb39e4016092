"""The Trainer's ends of both channels when there are no Searchers: weights go to nobody, and nothing comes up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tba.channels.base import Message
from tba.types import Version


class Nobody:
    """Both a WeightPublisher and a GroupReceiver."""

    def publish(self, version: Version, tensors: Mapping[str, NDArray[np.uint8]], note: bytes = b"") -> None:
        pass

    def close(self, finished: bool) -> None:
        pass

    def receive(self, wait: bool = False) -> list[Message]:
        return []

    @property
    def is_open(self) -> bool:
        return False
