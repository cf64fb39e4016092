"""What was drawn can be read again: the buffer's arrival numbers are rows of the rollout log."""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_cases import evict_before
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rollout_log import bits, make_group

from tba.buffer import log_files, recorded
from tba.buffer.draws import Rows
from tba.buffer.log import RolloutLog
from tba.buffer.recorded import recorded_groups
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.types import Group, Prompt, TbaError

SAMPLING = {"num_groups": 3, "group_size": 3, "recent_fraction": 0.5, "uniform_fraction": 0.5}


class SmallRun:
    """The Trainer's side of the data: log, buffer and draws, with its checkpoints and resumes, and no training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = RolloutLog(folder)
        self.buffer = self.new_buffer()
        self.rng = np.random.default_rng(0)
        self.serial = 0
        self.drawn: list[list[Group]] = []
        self.rows: list[Rows] = []
        self.saved: dict[str, Any] = {}
        self.save()

    @staticmethod
    def new_buffer() -> ReplayBuffer:
        return ReplayBuffer(40, 15, recent_groups=2)

    def merge(self, sizes: list[int], repeat: bool = False) -> None:
        """Groups of these sizes arrive, and some that had arrived before if `repeat`."""
        old = [make_group(self.serial, size=2)] if repeat and self.serial else []
        new = []
        for size in sizes:
            self.serial += 1
            prompt = Prompt(f"p{self.serial % 4}", "text", (1, self.serial % 4))
            new.append(replace(make_group(self.serial, size=size), prompt=prompt))
        self.buffer.extend(self.log.append([*old, *new, *old]))

    def evict(self, age: int) -> None:
        evict_before(self.buffer, self.serial - age)

    def step(self) -> None:
        if len(self.buffer):
            drawn = draw(self.buffer, rng=self.rng, inverse_temperature=1.0, **SAMPLING)
            self.drawn.append(drawn.groups)
            self.rows.append(np.array(drawn.rows))

    def save(self) -> None:
        self.log.compact()
        self.saved = {
            "position": self.log.position,
            "draw_state": json.loads(json.dumps(self.buffer.draw_state())),
            "step": len(self.drawn),
        }

    def resume(self, keep_tail: bool) -> None:
        """As Trainer.restore does; a searcher goes on with serials of its own."""
        self.log = RolloutLog(self.folder)
        if not keep_tail:
            self.log.set_aside_after(self.saved["position"])
        self.buffer = self.new_buffer()
        for groups in self.log.read(stop=self.saved["position"]):
            self.buffer.extend(groups)
        self.buffer.restore_draw_state(self.saved["draw_state"])
        for groups in self.log.read(start=self.saved["position"]):
            self.buffer.extend(groups)
        del self.drawn[self.saved["step"] :], self.rows[self.saved["step"] :]

    def assert_recorded(self) -> None:
        if self.rows:
            again = list(recorded_groups(self.folder, self.rows))
            assert [bits(groups) for groups in again] == [bits(groups) for groups in self.drawn]


ACTIONS = st.lists(
    st.one_of(
        st.builds(
            lambda sizes, repeat: lambda run: run.merge(sizes, repeat),
            st.lists(st.integers(1, 6), min_size=1, max_size=3),
            st.booleans(),
        ),
        st.builds(lambda age: lambda run: run.evict(age), st.integers(1, 20)),
        st.just(lambda run: run.step()),
        st.just(lambda run: run.save()),
        st.builds(lambda keep_tail: lambda run: run.resume(keep_tail), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_every_draw_can_be_read_again_from_the_log(actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_files, "_ROW_GROUP_BYTES", 2_000)
        run = SmallRun(Path(folder) / "rollouts")
        for action in [lambda run: run.merge([4, 3]), *actions, lambda run: run.step()]:
            action(run)
        run.assert_recorded()


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    """Ten merges, a draw after each; the first five are joined."""
    run = SmallRun(tmp_path / "rollouts")
    for number in range(10):
        run.merge([4, 4])
        run.step()
        if number == 4:
            run.save()
    return run


def test_reading_changes_nothing(run: SmallRun) -> None:
    (run.folder / ".000000010.parquet.tmp").write_bytes(b"being written")
    shutil.copy(run.folder / "000000000-000000004.parquet", run.folder / "000000000-000000003.parquet")
    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.folder.iterdir()}
    run.assert_recorded()
    assert {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.folder.iterdir()} == before


def test_a_log_may_be_joined_while_it_is_read(run: SmallRun) -> None:
    steps = recorded_groups(run.folder, run.rows)
    again = [next(steps) for _ in range(6)]
    run.save()
    run.merge([2])
    assert [bits(groups) for groups in [*again, *steps]] == [bits(groups) for groups in run.drawn]


def test_a_file_that_is_gone_before_it_is_opened_is_looked_for_again(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = recorded._file_with

    def look_then_join(merge: int, log: Path) -> Any:
        found = look(merge, log)
        if merge == 7:
            run.save()
        return found

    monkeypatch.setattr(recorded, "_file_with", look_then_join)
    run.assert_recorded()
    assert not (run.folder / "000000007.parquet").exists()


def test_no_more_is_held_than_later_steps_need(run: SmallRun) -> None:
    # Rows 0 to 3 are one group: 0 and 1 are needed in step 3, 2 and 3 are not. Rows from 40 on are in other files.
    rows = [[0, 1, 2, 3], [40, 41, 42, 43], [1, 0, 1, 0], [48, 49, 50, 51]]
    steps = recorded_groups(run.folder, [np.array([row]) for row in rows])
    [group] = next(steps)
    alive = [weakref.ref(t.response.tokens) for t in group.trajectories]
    del group
    next(steps)
    gc.collect()
    assert [ref() is not None for ref in alive] == [True, True, False, False]
    next(steps)
    next(steps)
    gc.collect()
    assert [ref() is not None for ref in alive] == [False] * 4


def test_a_log_that_ends_too_early_is_told_with_a_way_round_it(run: SmallRun) -> None:
    (run.folder / "000000009.parquet").unlink()
    needed = max(rows.max() for rows in run.rows)
    step = next(i for i, rows in enumerate(run.rows, 1) if rows.max() >= 9 * 8)
    assert needed >= 9 * 8, "else this tests nothing"
    with pytest.raises(TbaError, match=rf"has no row \d+, which step {step} .*--steps {step - 1}$"):
        list(recorded_groups(run.folder, run.rows))
    assert len(list(recorded_groups(run.folder, run.rows[: step - 1]))) == step - 1


@pytest.mark.parametrize("kind", ["missing within", "damaged", "no log"])
def test_a_damaged_log_is_told(run: SmallRun, kind: str) -> None:
    path = run.folder / "000000006.parquet"
    if kind == "missing within":
        path.unlink()
    elif kind == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 0xFF
        path.write_bytes(content)
    else:
        shutil.rmtree(run.folder)
    with pytest.raises(TbaError, match={"no log": "has no row"}.get(kind, r"00000000\d\.parquet")) as raised:
        list(recorded_groups(run.folder, run.rows))
    assert "\n" not in str(raised.value)


def test_a_log_of_another_run_is_told(run: SmallRun) -> None:
    with pytest.raises(TbaError, match=r"do not belong together.* step 1 "):
        list(recorded_groups(run.folder, [np.array([[3, 4]])]))
