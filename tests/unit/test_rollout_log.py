from __future__ import annotations

import json
import math
import os
import resource
import shutil
import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from buffer_cases import evict_before
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tba.buffer import log_files
from tba.buffer.arrow import from_table, to_table
from tba.buffer.browse import pieces_of
from tba.buffer.log import RolloutLog
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.buffer.schema import FOR_READERS, VERSION, VERSION_KEY
from tba.types import About, Group, Prompt, PromptRow, Response, TbaError, Trajectory, Version


def make_group(number: int, source: str = "searcher-0", prompt_id: str | None = None, size: int = 2) -> Group:
    """A group whose every value depends on its number."""
    rng = np.random.default_rng(number)
    trajectories = []
    for index in range(size):
        length = int(rng.integers(0, 6))
        logprobs, reference = rng.normal(size=(2, length)).astype(np.float32)
        tokens = rng.integers(0, 100, length).astype(np.int32)
        runs = ((Version(0, number), 1), (Version(1, number + 1), length))
        response = Response(tokens, logprobs, runs, f"réponse {index}", index % 2 == 0)
        trajectories.append(Trajectory(response, float(rng.normal()), (1.0, math.nan), reference))
    prompt = Prompt(prompt_id or f"prompt-{number}", f"quoi {number}?", tuple(range(number % 4)))
    return Group(prompt, tuple(trajectories), source, number)


def bits(groups: Sequence[Group]) -> list[Any]:
    """Everything in the groups as values that compare bit by bit."""

    def of_array(array: Any) -> Any:
        assert isinstance(array, np.ndarray)
        return str(array.dtype), array.shape, array.tobytes()

    def of_trajectory(t: Trajectory) -> Any:
        r = t.response
        numbers = struct.pack(f"{1 + len(t.reward_parts)}d", t.reward, *t.reward_parts)
        views = of_array(r.tokens), of_array(r.token_logprobs), of_array(t.reference_token_logprobs)
        assert type(r.finished) is bool
        assert type(r.on_policy) is bool
        assert type(t.reward) is float
        return views, r.token_versions, r.text, r.finished, r.on_policy, numbers, len(t.reward_parts)

    return [(g.prompt, g.source, g.serial, [of_trajectory(t) for t in g.trajectories]) for g in groups]


def all_bits(log: RolloutLog, start: int = 0, stop: int | None = None) -> list[Any]:
    return [bits(groups) for groups in log.read(start, stop)]


MERGES = [[make_group(10 * merge + i) for i in range(1 + merge % 3)] for merge in range(7)]
ALL = [bits(merge) for merge in MERGES]


@pytest.fixture
def log(tmp_path: Path) -> RolloutLog:
    """Merges 0 to 2 joined, 3 and 4 joined, 5 and 6 as pieces."""
    log = RolloutLog(tmp_path / "rollouts")
    for number, merge in enumerate(MERGES):
        assert log.append(merge) == merge
        if number in (2, 4):
            log.compact()
    return log


@pytest.fixture
def folder(log: RolloutLog) -> Path:
    return log._directory


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


FLOATS = arrays.arrays(np.float32, st.integers(0, 4), elements=st.floats(width=32))
VERSIONS = st.builds(Version, st.integers(0, 2**40), st.integers(0, 2**40))
TRAJECTORIES = st.builds(
    Trajectory,
    st.builds(
        Response,
        arrays.arrays(np.int32, st.integers(0, 4)),
        FLOATS,
        st.lists(st.tuples(st.none() | VERSIONS, st.integers(0, 9)), min_size=1, max_size=3)
        .filter(lambda runs: any(version is not None for version, _ in runs))
        .map(tuple),
        st.text(max_size=5),
        st.booleans(),
        st.booleans(),
    ),
    st.floats(),
    st.lists(st.floats(), max_size=3).map(tuple),
    FLOATS,
)
GROUPS = st.builds(
    Group,
    st.builds(Prompt, st.text(max_size=3), st.text(max_size=3), st.lists(st.integers(0, 2**31 - 1)).map(tuple)),
    st.lists(TRAJECTORIES, min_size=1, max_size=3).map(tuple),
    st.text(max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(GROUPS, min_size=1, max_size=4))
def test_a_table_gives_back_what_it_was_made_of(groups: list[Group]) -> None:
    groups = [replace(group, serial=number) for number, group in enumerate(groups)]
    ((merge, again),) = from_table(to_table(5, groups))
    assert merge == 5
    assert bits(again) == bits(groups)


def test_arrays_of_another_kind_are_refused() -> None:
    group = make_group(1)
    wrong = replace(group.trajectories[0], reference_token_logprobs=np.zeros(3, np.float64))
    with pytest.raises(TypeError):
        to_table(0, [replace(group, trajectories=(wrong,))])


def test_what_is_read_is_what_was_appended(log: RolloutLog, folder: Path) -> None:
    assert names(folder) == [
        "000000000-000000002.parquet",
        "000000003-000000004.parquet",
        "000000005.parquet",
        "000000006.parquet",
    ]
    assert log.position == 7
    assert all_bits(log) == ALL
    assert all_bits(RolloutLog(folder)) == ALL
    for start in range(8):
        for stop in range(8):
            assert all_bits(log, start, stop) == ALL[start:stop]


def test_arrays_read_from_the_log_do_not_share_memory(log: RolloutLog) -> None:
    tokens = next(log.read())[0].trajectories[0].response.tokens
    assert tokens.base is None
    assert tokens.flags.writeable


def test_other_programs_read_the_directory(log: RolloutLog, folder: Path) -> None:
    num_rows = sum(len(g.trajectories) for merge in MERGES for g in merge)
    log.set_aside_after(6)
    num_rows -= sum(len(g.trajectories) for g in MERGES[6])
    frame = pd.read_parquet(folder)
    assert len(frame) == ds.dataset(folder).count_rows() == num_rows
    assert list(frame["merge"].unique()) == [0, 1, 2, 3, 4, 5]
    first, row = MERGES[0][0], frame.iloc[0]
    assert row["response"] == first.trajectories[0].response.text
    assert (row["epoch"], row["version"]) == first.trajectories[0].version
    assert row["token_versions"][0] == {"epoch": 0, "version": 0, "num_tokens": 1}
    codecs = {p.name: pq.ParquetFile(p).metadata.row_group(0).column(0).compression for p in folder.glob("*.parquet")}
    assert [codecs[name] for name in sorted(codecs)] == ["ZSTD", "ZSTD", "LZ4"]  # joined, joined, a merge since


def test_appending_no_groups_makes_no_merge(log: RolloutLog, folder: Path) -> None:
    assert log.append([]) == []
    assert log.append(MERGES[2] + MERGES[6]) == []
    assert (log.position, log.num_repeated) == (7, len(MERGES[2]) + len(MERGES[6]))
    reopened = RolloutLog(folder)
    other, new = make_group(3, source="searcher-1"), make_group(61)
    assert reopened.append([MERGES[6][-1], other, new, new]) == [other, new]
    assert (reopened.position, reopened.num_repeated) == (8, 2)


def test_what_the_buffer_refuses_is_not_logged(log: RolloutLog) -> None:
    group = make_group(101)
    not_finite = replace(group.trajectories[0], reward=math.nan)
    for bad in ((), (group.trajectories[0], not_finite)):
        with pytest.raises(ValueError):
            log.append([make_group(100), replace(group, trajectories=bad)])
    assert log.position == 7


def test_joining_makes_whole_merges_a_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_ROW_GROUP_BYTES", 1_500)
    log = RolloutLog(tmp_path)
    for merge in MERGES:
        log.append(merge)
    log.compact()
    log.compact()
    assert names(tmp_path) == ["000000000-000000006.parquet"]
    assert 1 < pq.ParquetFile(tmp_path / names(tmp_path)[0]).num_row_groups < 7
    assert all_bits(log) == ALL
    assert all_bits(log, 2, 4) == ALL[2:4]
    assert log.set_aside_after(3) == 4
    assert all_bits(RolloutLog(tmp_path)) == ALL[:3]


def crash_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `os.replace` and `unlink` succeed so often, then fail as if the process had died there."""
    done = 0

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal done
            if done == calls:
                raise KeyboardInterrupt
            done += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(os, "replace", counted(os.replace))
    monkeypatch.setattr(Path, "unlink", counted(Path.unlink))


@pytest.mark.parametrize("calls", range(4))
def test_a_crash_while_joining_neither_loses_nor_doubles(
    log: RolloutLog, folder: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash_after(calls, patch)
        if calls < 3:
            with pytest.raises(KeyboardInterrupt):
                log.compact()
        else:
            log.compact()
    reopened = RolloutLog(folder)
    assert all_bits(reopened) == ALL
    assert len(pd.read_parquet(folder)) == sum(len(g.trajectories) for merge in MERGES for g in merge)
    reopened.append([make_group(100)])
    reopened.compact()
    assert all_bits(RolloutLog(folder)) == [*ALL, bits([make_group(100)])]


def test_pieces_left_beside_their_join_do_not_count(log: RolloutLog, folder: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    log.compact()
    for piece in ("000000005.parquet", "000000006.parquet"):
        shutil.copy(kept / piece, folder)
    (folder / ".000000007.parquet.tmp").write_bytes(b"half")
    assert all_bits(RolloutLog(folder)) == ALL
    assert names(folder)[-1] == "000000005-000000006.parquet"
    assert len(names(folder)) == 3


@pytest.mark.parametrize("position", range(8))
def test_setting_aside_what_came_after_a_position_leaves_the_log_before_it(
    log: RolloutLog, folder: Path, position: int
) -> None:
    assert log.set_aside_after(position) == 7 - position
    assert log.position == position
    assert all_bits(log) == ALL[:position]
    numbers = [int(n) for path in folder.rglob("_superseded/1/*.parquet") for n in pd.read_parquet(path)["merge"]]
    assert sorted(set(numbers)) == list(range(position, 7))
    # Serials are back where they were: what was set aside may come again, what was kept may not.
    later = [group for merge in MERGES[position:] for group in merge]
    assert log.append([group for merge in MERGES for group in merge]) == later
    assert all_bits(RolloutLog(folder)) == ALL[:position] + ([bits(later)] if later else [])


@pytest.mark.parametrize("calls", range(6))
def test_a_crash_while_going_back_can_be_repeated(
    log: RolloutLog, folder: Path, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        crash_after(calls, patch)
        # Two pieces and a file are moved, another is written in two parts and removed.
        with pytest.raises(KeyboardInterrupt):
            log.set_aside_after(1)
    reopened = RolloutLog(folder)
    assert reopened.position >= 1
    assert all_bits(reopened) == ALL[: reopened.position]
    reopened.set_aside_after(1)
    assert all_bits(RolloutLog(folder)) == ALL[:1]


def test_a_position_beyond_the_end_is_an_error(log: RolloutLog) -> None:
    with pytest.raises(TbaError, match="earlier checkpoint"):
        log.set_aside_after(8)
    with pytest.raises(TbaError, match="earlier checkpoint"):
        next(log.read(0, 8))


def test_a_missing_file_is_an_error(log: RolloutLog, folder: Path) -> None:
    (folder / "000000005.parquet").unlink()
    with pytest.raises(TbaError, match=r"000000006\.parquet"):
        RolloutLog(folder)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.95])
def test_a_torn_file_is_named(log: RolloutLog, folder: Path, fraction: float) -> None:
    path = folder / "000000006.parquet"
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction)])
    with pytest.raises(TbaError, match=r"000000006\.parquet") as error:
        RolloutLog(folder)
    assert "\n" not in str(error.value)


def test_a_damaged_file_is_named(log: RolloutLog, folder: Path) -> None:
    path = folder / "000000000-000000002.parquet"
    content = path.read_bytes()
    row_group = pq.ParquetFile(path).metadata.row_group(0)
    for index in range(row_group.num_columns):
        column = row_group.column(index)
        damaged = bytearray(content)
        damaged[column.data_page_offset + column.total_compressed_size - 1] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(TbaError, match=r"000000000-000000002\.parquet"):
            list(RolloutLog(folder).read())


def test_another_programs_parquet_is_named(log: RolloutLog, folder: Path) -> None:
    pd.DataFrame({"a": [1]}).to_parquet(folder / "000000005.parquet")
    with pytest.raises(TbaError, match=r"000000005\.parquet"):
        list(RolloutLog(folder).read())


@pytest.mark.parametrize("number", [0, 6])
def test_a_file_of_a_newer_tba_is_refused(log: RolloutLog, folder: Path, number: int) -> None:
    """Whether it is the file that is opened first, the last, or another one."""
    path = sorted(folder.glob("*.parquet"))[0 if number == 0 else -1]
    table = pq.read_table(path)
    newer = {**(table.schema.metadata or {}), VERSION_KEY: str(VERSION + 1).encode()}
    pq.write_table(table.replace_schema_metadata(newer), path)
    with pytest.raises(TbaError) as error:
        list(RolloutLog(folder).read())
    assert str(error.value) == f"{path} was written by a newer version of tba: update"


def as_written_by_0_1(path: Path) -> None:
    """Take from a file what came with epochs: two fields and the number of the schema."""
    table = pq.read_table(path)
    kept = ("version", "num_tokens")
    runs = [[{name: run[name] for name in kept} for run in row] for row in table["token_versions"].to_pylist()]
    place = table.schema.get_field_index("token_versions")
    old_type = pa.list_(pa.struct([(name, pa.int64()) for name in kept]))
    metadata = {key: value for key, value in table.schema.metadata.items() if key != VERSION_KEY}
    table = table.set_column(place, "token_versions", pa.array(runs, old_type))
    table = table.drop_columns(["epoch", "on_policy", *FOR_READERS])
    pq.write_table(table.replace_schema_metadata(metadata), path)


def as_written_before_temperatures(path: Path) -> None:
    """Take from a file what came with version 3 of the schema."""
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, VERSION_KEY: b"2"}
    pq.write_table(table.drop_columns(["on_policy", *FOR_READERS]).replace_schema_metadata(metadata), path)


def test_before_the_temperature_was_logged_all_counts_as_the_policys_own(log: RolloutLog, folder: Path) -> None:
    for path in sorted(folder.glob("*.parquet")):
        as_written_before_temperatures(path)
    reopened = RolloutLog(folder)
    assert all_bits(reopened) == ALL
    assert all(t.response.on_policy for merge in reopened.read() for group in merge for t in group.trajectories)


def as_written_before_readers(path: Path) -> None:
    """Take from a file what came with version 4 of the schema."""
    table = pq.read_table(path)
    metadata = {**table.schema.metadata, VERSION_KEY: b"3"}
    pq.write_table(table.drop_columns(list(FOR_READERS)).replace_schema_metadata(metadata), path)


def test_before_there_was_something_for_readers_it_is_null(log: RolloutLog, folder: Path) -> None:
    for path in sorted(folder.glob("*.parquet"))[:1]:
        as_written_before_readers(path)
    reopened = RolloutLog(folder)
    assert all_bits(reopened) == ALL
    reopened.compact()
    assert all_bits(reopened) == ALL
    rows = [row for piece in pieces_of(folder) for row in piece.read(list(FOR_READERS)).to_pylist()]
    old, new = rows[0], rows[-1]
    assert set(old.values()) == {None}
    assert new["reward_names"] == []


def test_what_readers_want_to_know_is_in_the_log(tmp_path: Path) -> None:
    known = {"prompt-1": PromptRow('{"answer": 4}', None), "prompt-2": PromptRow("{}", '[{"role": "user"}]')}
    log = RolloutLog(tmp_path, known.get)
    about = About(("right", "brief"), ('{"judge": "good"}', "{}"))
    groups = [replace(make_group(1), about=about), make_group(2), make_group(3)]
    assert log.append(groups, Version(1, 7)) == groups
    log.compact()
    assert [bits(merge) for merge in log.read()] == [bits(groups)]
    frame = pd.read_parquet(tmp_path).drop_duplicates("serial")
    assert list(zip(frame["merged_epoch"], frame["merged_step"], strict=True)) == [(1, 7)] * 3
    assert [list(names) for names in frame["reward_names"]] == [["right", "brief"], [], []]
    assert frame["columns"].iloc[0] == '{"answer": 4}'
    assert frame["messages"].iloc[1] == '[{"role": "user"}]'
    assert frame["notes"].iloc[0] == '{"judge": "good"}'
    assert frame[["columns", "messages", "notes"]].isna().to_numpy().tolist() == [
        [False, True, False],
        [False, False, True],
        [True, True, True],
    ]


def in_epoch_0(merge: list[Group]) -> list[Group]:
    def of(trajectory: Trajectory) -> Trajectory:
        runs = trajectory.response.token_versions
        response = replace(trajectory.response, token_versions=tuple((Version(0, v.step), n) for v, n in runs if v))
        return replace(trajectory, response=response)

    return [replace(group, trajectories=tuple(map(of, group.trajectories))) for group in merge]


@pytest.mark.parametrize("num_old", [1, 2, 3, 4])
def test_files_of_tba_0_1_are_read_and_joined_with_new_ones(log: RolloutLog, folder: Path, num_old: int) -> None:
    for path in sorted(folder.glob("*.parquet"))[:num_old]:
        as_written_by_0_1(path)
    num_merges = (3, 5, 6, 7)[num_old - 1]
    wanted = [bits(in_epoch_0(merge)) for merge in MERGES[:num_merges]] + ALL[num_merges:]
    reopened = RolloutLog(folder)
    assert all_bits(reopened) == wanted
    assert list(pd.read_parquet(folder)["merge"].unique()) == list(range(7)), "other programs read the mixture too"
    reopened.append([make_group(100)])
    reopened.compact()
    assert names(folder)[-1] == "000000005-000000007.parquet"
    reopened.set_aside_after(4)
    assert all_bits(RolloutLog(folder)) == wanted[:4]


def test_a_full_disk_is_an_oserror_and_leaves_the_log_as_it_was(log: RolloutLog, folder: Path) -> None:
    before = names(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for action in (lambda: log.append([make_group(100)]), log.compact):
        # Files cannot grow beyond a few bytes, which the system reports as it does a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        try:
            with pytest.raises(OSError) as error:
                action()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.errno is not None
        assert names(folder) == before
    log.append([make_group(100)])
    assert all_bits(RolloutLog(folder)) == [*ALL, bits([make_group(100)])]


def test_the_log_and_the_draw_state_rebuild_the_buffer(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sampling = {"num_groups": 4, "group_size": 3, "recent_fraction": 0.5, "uniform_fraction": 0.5}
    log, buffer = RolloutLog(tmp_path), ReplayBuffer(60, 25, recent_groups=4)
    for number in range(30):
        groups = [make_group(3 * number + i, prompt_id=f"p{(number * i) % 5}", size=4) for i in range(3)]
        buffer.extend(log.append(groups))
        evict_before(buffer, 3 * number - 40)
        draw(buffer, rng=rng, inverse_temperature=1.0, **sampling)
        if number % 7 == 6:
            log.compact()
    rebuilt, other_rng = ReplayBuffer(60, 25, recent_groups=4), np.random.default_rng()
    for merge in RolloutLog(tmp_path).read(0, log.position):
        rebuilt.extend(merge)
    evict_before(rebuilt, 3 * 29 - 40)
    rebuilt.restore_draw_state(json.loads(json.dumps(buffer.draw_state())))
    other_rng.bit_generator.state = rng.bit_generator.state
    assert len(rebuilt) == len(buffer)
    for _ in range(50):
        a = draw(buffer, rng=rng, inverse_temperature=1.0, **sampling)
        b = draw(rebuilt, rng=other_rng, inverse_temperature=1.0, **sampling)
        assert bits(a.groups) == bits(b.groups)
        assert a.rows == b.rows
