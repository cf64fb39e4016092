"""What the other processes of the channel tests do. Apart from the tests, so that starting them loads little."""

from __future__ import annotations

from itertools import count
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tba.channels.shared_memory import SharedWeightPublisher
from tba.channels.socket import SocketGroupSender
from tba.types import Report, Version


def payload(version: Version, num_words: int) -> dict[str, NDArray[np.uint8]]:
    """Two tensors made of nothing but the version's numbers: content tells what it should be labelled as."""
    words = np.resize(np.array(version, np.uint64), num_words).view(np.uint8)
    return {"first": words, "second": words[: len(words) // 2]}


def publish_back_to_back(directory: Path, num_words: int, enough: Event) -> None:
    """Publishes without a pause until the reader has seen enough."""
    publisher = SharedWeightPublisher(directory)
    for number in count(1):
        version = Version(number // 10, number % 10)  # every epoch begins at step 0
        publisher.publish(version, payload(version, num_words))
        if enough.is_set():
            publisher.close(finished=True)
            return


def send_for_ever(directory: Path, key: bytes, name: str, num_bytes: int) -> None:
    """Sends numbered messages until it is killed."""
    sender = SocketGroupSender(directory, key, lambda: True)
    number = 0
    while True:
        sender.send(Report("event", name, {"number": number, "ballast": bytes(num_bytes)}))
        number += 1
