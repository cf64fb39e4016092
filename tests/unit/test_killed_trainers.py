"""What a Trainer that was killed after its last checkpoint leaves to the one that goes on."""

from __future__ import annotations

import json
import signal
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from killed_trainers import CHECKPOINT_PERIOD, PUBLISHED, train

from tba.buffer.draws import DRAWS
from tba.buffer.log import RolloutLog
from tba.launch.nursery import start_process
from tba.learn.epochs import Epochs
from tba.runs.metrics import read_metrics
from tba.testing import save_tiny_model
from tba.types import Version


def trained(*arguments: Any, **settings: Any) -> int | None:
    """The exit code of a Trainer in a process of its own."""
    process = start_process(partial(train, **settings), arguments, "trainer", num_threads=1)
    process.join()
    return process.exitcode


def drawn_versions(run: Path, step: int) -> list[Version]:
    """The versions of the data that a step was trained on."""
    versions = [t.version for merge in RolloutLog(run / "rollouts").read() for g in merge for t in g.trajectories]
    lines = map(json.loads, (run / DRAWS).read_text("utf-8").splitlines())
    rows = next(line["rows"] for line in lines if line["step"] == step)
    return [versions[row] for rows_of_group in rows for row in rows_of_group]


def age(version: Version, now: Version) -> int:
    """By the definition: the steps back to the last one in common and on from it. All forks are at one checkpoint."""
    common = version.step if version.epoch == now.epoch else min(version.step, CHECKPOINT_PERIOD)
    return (version.step - common) + (now.step - common)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize("limit", [None, 3])
def test_a_trainer_killed_after_a_merge_past_its_checkpoint(tmp_path: Path, model: str, limit: int | None) -> None:
    """Killed twice, each time as it publishes step 7: the groups of steps 4 to 6 are merged and stay in the buffer."""
    run = tmp_path / "run"
    for resume in (False, True):
        assert trained(run, model, resume, 7) == -signal.SIGKILL
    assert trained(run, model, True, None, **({} if limit is None else {"max_staleness": limit})) == 0

    records = [record for record in read_metrics(run) if record["kind"] == "train"]
    assert [record["step"] for record in records] == list(range(1, 11))
    assert all(int(age) >= 0 for record in records for age in record["staleness/counts"])
    assert Epochs.read(run).newest == 2
    abandoned = set()
    for record in records[CHECKPOINT_PERIOD:]:
        now, drawn = Version(2, record["step"] - 1), drawn_versions(run, record["step"])
        assert record["staleness/counts"] == Counter(str(age(version, now)) for version in drawn)
        assert limit is None or record["staleness/max"] <= limit
        abandoned |= {v for v in drawn if v.epoch != now.epoch and v.step > CHECKPOINT_PERIOD}
    assert abandoned, "else this tests nothing"

    digests = defaultdict(set)
    for line in (run / PUBLISHED).read_text("utf-8").splitlines():
        version, digest = json.loads(line)
        digests[Version(*version)].add(digest)
    assert all(len(found) == 1 for found in digests.values()), "one version, one set of weights"
    assert {version.epoch for version in digests} == {0, 1, 2}
    assert digests[Version(0, 4)] == digests[Version(1, 4)] == digests[Version(2, 4)], "the checkpoint's"
    assert len(set.union(*(digests[Version(epoch, 6)] for epoch in range(3)))) == 3, "else this tests nothing"
