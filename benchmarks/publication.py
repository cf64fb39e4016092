"""Publication of 135M weights: the Trainer's time for it, with a Searcher reading."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import copy_gigabytes
from benchmarks.models import LARGE, large
from benchmarks.report import Row, at_most, seconds
from tba.channels.shared_memory import SharedWeightPublisher, SharedWeightSubscriber
from tba.policy.policy import export_weights
from tba.types import NEVER_PUBLISHED, Version

NUM_PUBLICATIONS = 8


def run(full: bool) -> list[Row]:
    model = large()
    weights = export_weights(model)
    size = sum(len(tensor) for tensor in weights.values())
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        publisher = SharedWeightPublisher(Path(folder))
        publisher.publish(Version(0, 0), weights)  # the first makes the file
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        reader = context.Process(target=_read, args=(theirs, folder))
        reader.start()
        spent = []
        for version in (Version(0, step) for step in range(1, NUM_PUBLICATIONS + 1)):
            spent.append(seconds(lambda version=version: publisher.publish(version, weights)))  # type: ignore[misc]
            ours.send(version)
            assert ours.recv() == version, "the reader has another version"
        publisher.close(finished=True)
        ours.send(None)
        reader.join()
    median = statistics.median(spent)
    rate = 2 * size / median / 1e9
    return [
        at_most(
            0.3,
            f"publication of {LARGE}, {size / 1e6:.0f} MB, seconds of the Trainer",
            f"{median:.2f} s",
            "",
            median,
            f"{min(spent):.2f} to {max(spent):.2f} (n={len(spent)})",
            f"{rate / copy_gigabytes():.0%} of the core's copying speed",
        )
    ]


def _read(connection: Any, folder: str) -> None:
    subscriber = SharedWeightSubscriber(Path(folder), lambda: True)
    held = NEVER_PUBLISHED
    while (version := connection.recv()) is not None:
        update = subscriber.newer_than(held)
        held = update.version if update is not None else held
        connection.send(held)
        assert held == version
