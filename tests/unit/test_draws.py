from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tba.buffer import draws
from tba.buffer.draws import DrawLog, read_draws
from tba.types import TbaError

DRAWS = [[[3, 1], [0, 0]], [[2, 5], [4, 4]], [[100, 7], [1, 99]]]


def write(run: Path, draws: list[Any] = DRAWS, first_step: int = 1) -> DrawLog:
    log = DrawLog(run)
    for step, rows in enumerate(draws, first_step):
        log.append(step, rows)
    return log


def read(run: Path, num_steps: int | None = None) -> list[Any]:
    return [rows.tolist() for rows in read_draws(run, num_steps)]


def test_what_is_read_is_what_was_appended(tmp_path: Path) -> None:
    log = write(tmp_path)
    assert read(tmp_path) == DRAWS, "while the run goes on"
    log.flush()
    log.close()
    assert read(tmp_path) == DRAWS
    assert [read(tmp_path, count) for count in (1, 2, 3)] == [DRAWS[:1], DRAWS[:2], DRAWS]


def test_a_record_without_a_step_leaves_no_file(tmp_path: Path) -> None:
    log = DrawLog(tmp_path)
    log.flush()
    log.go_back_to(0)
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_process_within_a_line_costs_that_line_only(tmp_path: Path) -> None:
    write(tmp_path).close()
    whole = (tmp_path / draws.DRAWS).read_bytes()
    for length in range(len(whole)):
        (tmp_path / draws.DRAWS).write_bytes(whole[:length])
        num_whole = whole[:length].count(b"\n")
        if num_whole:
            assert read(tmp_path) == DRAWS[:num_whole]
        else:
            with pytest.raises(TbaError, match="no step yet"):
                read(tmp_path)


@pytest.mark.parametrize("torn", [b"", b'{"step":4,"ro', b"\0\0\0\0"])
@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_resumed_run_goes_on_after_the_step_it_went_back_to(tmp_path: Path, step: int, torn: bytes) -> None:
    write(tmp_path).close()
    with open(tmp_path / draws.DRAWS, "ab") as file:
        file.write(torn)
    log = DrawLog(tmp_path)
    log.go_back_to(step)
    log.append(step + 1, [[8, 8]])
    log.close()
    assert read(tmp_path) == [*DRAWS[:step], [[8, 8]]]
    assert [path.name for path in tmp_path.iterdir()] == [draws.DRAWS]


def test_going_back_also_works_for_a_record_that_is_being_written(tmp_path: Path) -> None:
    log = write(tmp_path)
    log.go_back_to(1)
    log.append(2, [[8, 8]])
    log.close()
    assert read(tmp_path) == [DRAWS[0], [[8, 8]]]


def test_a_crash_while_going_back_leaves_the_record_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path).close()

    def crash(*paths: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        DrawLog(tmp_path).go_back_to(1)
    assert read(tmp_path) == DRAWS


def test_a_disk_that_takes_a_part_of_a_line_gets_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:7]))
    write(tmp_path).close()
    assert read(tmp_path) == DRAWS


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"",
        b"[]",
        b'{"step":2}',
        b'{"step":3,"rows":[[1,2]]}',
        b'{"step":2,"rows":[]}',
        b'{"step":2,"rows":[1,2]}',
        b'{"step":2,"rows":[[1,2],[3]]}',
        b'{"step":2,"rows":[[1,-2]]}',
        b'{"step":2,"rows":[[1,2.5]]}',
        b'{"step":2,"rows":[["1","2"]]}',
        b'{"step":2,"rows":[[true,false]]}',
    ],
)
def test_a_damaged_line_is_named_with_a_way_round_it(tmp_path: Path, line: bytes) -> None:
    write(tmp_path).close()
    lines = (tmp_path / draws.DRAWS).read_bytes().splitlines()
    lines[1] = line
    (tmp_path / draws.DRAWS).write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(TbaError, match=rf"line 2 of .*{draws.DRAWS}.*--steps 1$"):
        read(tmp_path)
    assert read(tmp_path, 1) == DRAWS[:1]


def test_a_lost_step_is_named(tmp_path: Path) -> None:
    write(tmp_path, DRAWS[:1]).close()
    write(tmp_path, DRAWS[2:], first_step=3).close()
    with pytest.raises(TbaError, match=r"line 2 of .* is not the draw of step 2"):
        read(tmp_path)


def test_runs_that_were_not_recorded_from_their_start_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=f"has no {draws.DRAWS}"):
        read(tmp_path)
    write(tmp_path, first_step=101).close()
    with pytest.raises(TbaError, match="begins at step 101"):
        read(tmp_path)


def test_more_steps_than_were_recorded_are_refused(tmp_path: Path) -> None:
    write(tmp_path).close()
    with pytest.raises(TbaError, match=r"recorded 3 steps, .* 4"):
        read(tmp_path, 4)
