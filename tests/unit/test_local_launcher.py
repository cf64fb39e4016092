"""What the local launcher says about a process that ended."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tba.config import Config
from tba.launch.local import LocalRun, TrainerDiedError
from tba.types import TbaError

MEMORY = "probably out of memory"


def a_run(folder: Path, **processes: Any) -> LocalRun:
    """A run whose processes have ended already."""
    run = LocalRun(Config.embedded(run={"max_restarts": 0}), folder, None, folder)
    for name, process in processes.items():
        setattr(run, f"_{name}", process)
    return run


def ended(code: int) -> Any:
    return SimpleNamespace(exitcode=code, pid=1, is_alive=lambda: False)


def test_a_trainer_that_was_killed_as_without_memory_is_told_what_takes_less(tmp_path: Path) -> None:
    with pytest.raises(TrainerDiedError, match=MEMORY) as error:
        a_run(tmp_path, trainer=ended(-signal.SIGKILL))._outcome()
    [line] = str(error.value).splitlines()
    for part in ("SIGKILL", "trainer.micro_batch_tokens", "model.gradient_checkpointing", f"--resume {tmp_path}"):
        assert part in line


@pytest.mark.parametrize("code", [-signal.SIGSEGV, -signal.SIGTERM, 1])
def test_other_ends_of_a_trainer_say_nothing_of_memory(tmp_path: Path, code: int) -> None:
    with pytest.raises(TrainerDiedError, match=f"--resume {tmp_path}") as error:
        a_run(tmp_path, trainer=ended(code))._outcome()
    assert MEMORY not in str(error.value)


def test_searchers_that_were_killed_as_without_memory_are_told_what_takes_less(tmp_path: Path) -> None:
    run = a_run(tmp_path, trainer=ended(0), searchers={0: ended(-signal.SIGKILL)})
    run._look_after_searchers()
    with pytest.raises(TbaError, match=r"run\.max_restarts = 0 .*SIGKILL.*out of memory: lower searcher\."):
        run._outcome()
