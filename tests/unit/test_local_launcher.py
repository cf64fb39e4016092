"""What the local launcher makes of the way a process ended."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tba.launch.local import _exit_of
from tba.launch.processes import EXIT_CODES, error_file
from tba.launch.supervise import Outcome


@pytest.mark.parametrize("outcome", Outcome)
def test_a_process_tells_how_it_ended_by_its_exit_code(tmp_path: Path, outcome: Outcome) -> None:
    ended = _exit_of("trainer", EXIT_CODES[outcome], tmp_path)
    assert (ended.outcome, ended.process, ended.error) == (outcome, "trainer", "")
    assert not ended.maybe_out_of_memory


@pytest.mark.parametrize("code", [2, 127, -signal.SIGSEGV, -signal.SIGTERM])
def test_any_other_end_is_a_death(tmp_path: Path, code: int) -> None:
    ended = _exit_of("trainer", code, tmp_path)
    assert ended.outcome is Outcome.DIED
    assert str(abs(code)) in ended.how
    assert not ended.maybe_out_of_memory


def test_the_kernels_kill_may_be_for_memory(tmp_path: Path) -> None:
    ended = _exit_of("searcher-0", -signal.SIGKILL, tmp_path)
    assert ended.maybe_out_of_memory
    assert "SIGKILL" in ended.how


def test_what_a_process_left_is_told(tmp_path: Path) -> None:
    path = error_file(tmp_path, "searcher-0")
    path.parent.mkdir()
    path.write_text("fix this", "utf-8")
    assert _exit_of("searcher-0", 64, tmp_path).error == "fix this"
