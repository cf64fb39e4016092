"""A Trainer in a process of its own, which is killed as it publishes. Apart from the tests, as processes import it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from trainer_cases import random_groups, trainer_in

from tba.channels.inline import InlineGroups
from tba.config.training import CheckpointConfig
from tba.learn.checkpoint import list_checkpoints
from tba.types import Version

PUBLISHED = "published.jsonl"
CHECKPOINT_PERIOD = 4


class Recorder:
    """Answers each publication with groups of its version, and writes down which weights they were."""

    def __init__(self, run: Path, groups: InlineGroups, kill_at: int | None) -> None:
        self._path = run / PUBLISHED
        self._groups = groups
        self._kill_at = kill_at

    def publish(self, version: Version, tensors: Mapping[str, NDArray[np.uint8]], note: bytes = b"") -> None:
        digest = xxhash.xxh3_64_hexdigest(b"".join(tensor.tobytes() for tensor in tensors.values()))
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps([version, digest]) + "\n")
        if version.step == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        for number, group in enumerate(random_groups(2, version=version, seed=version.step + 100 * version.epoch)):
            self._groups.send(replace(group, source=f"epoch-{version.epoch}", serial=10 * version.step + number))

    def close(self, finished: bool) -> None:
        pass


def train(run: Path, model: str, resume: bool, kill_at: int | None, **settings: Any) -> None:
    """Train, maybe from the newest checkpoint on, to the last step or to the publication of step `kill_at`."""
    torch.set_num_threads(1)
    checkpoint = list_checkpoints(run)[-1] if resume else None
    folder = str(checkpoint.model) if checkpoint else model
    trainer = trainer_in(run, folder, num_steps=10, sync_period=1, **settings)
    trainer.checkpoint_config = CheckpointConfig(period=CHECKPOINT_PERIOD)
    assert isinstance(trainer.groups, InlineGroups)
    trainer.weights = Recorder(run, trainer.groups, kill_at)
    if checkpoint:
        trainer.restore(checkpoint, keep_tail=True, new_epoch=True)
    trainer.run()
