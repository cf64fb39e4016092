"""The folder where processes meet: nobody else's folder stops a start, and no living run's folder is removed."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tba.launch import meeting
from tba.launch.meeting import meeting_folder, published_bytes
from tba.policy.policy import load_model
from tba.testing import save_tiny_model


@pytest.fixture(autouse=True)
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands in for the file system in memory, and another folder for the temporary one."""
    for name in ("memory", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(meeting, "MEMORY", tmp_path / "memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "memory"


def make(root: Path, name: str, *, lock: bool = True) -> Path:
    """A folder as a run leaves it, with something in it."""
    folder = root / name
    folder.mkdir(mode=0o700)
    (folder / "weights").write_bytes(b"w")
    if lock:
        (folder / "lock").touch()
    return folder


@contextmanager
def held(folder: Path) -> Iterator[None]:
    with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_the_folder_is_private_and_goes_with_its_block(memory: Path) -> None:
    with meeting_folder() as folder:
        assert folder.parent == memory
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "weights").write_bytes(b"w")
        with meeting_folder() as other:
            assert other != folder
        assert folder.exists()
        assert not other.exists()
    assert os.listdir(memory) == []


@pytest.mark.parametrize("name", ["tba-99999999999-x", "tba-²-x", "tba-", "tba-\udcff-x", "tba-999995-x"])
@pytest.mark.parametrize("kind", ["folder", "folder without a lock", "file", "dangling link", "pipe"])
def test_no_name_of_anybody_stops_a_start(memory: Path, name: str, kind: str) -> None:
    if kind.startswith("folder"):
        make(memory, name, lock=kind == "folder")
    elif kind == "file":
        (memory / name).touch()
    elif kind == "pipe":
        os.mkfifo(memory / name)
    else:
        (memory / name).symlink_to("nowhere")
    with meeting_folder() as folder:
        assert folder.is_dir()
    assert os.path.lexists(memory / name) == (kind != "folder")


def test_a_folder_of_a_thousand_levels_stops_no_start(memory: Path) -> None:
    deep = make(memory, "tba-999995-x")
    try:
        descriptor = os.open(deep, os.O_RDONLY)
        for _ in range(3 * sys.getrecursionlimit()):
            os.mkdir("a", dir_fd=descriptor)
            inner = os.open("a", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        os.close(descriptor)
        with meeting_folder() as folder:
            assert folder.is_dir()
    finally:
        subprocess.run(["rm", "-rf", str(deep)], check=True)  # Python's own removal cannot


def test_a_run_of_another_container_keeps_its_folder(memory: Path) -> None:
    """Its process id means nothing here, where nobody or somebody else has it."""
    theirs = make(memory, "tba-99999999-x")
    with held(theirs), meeting_folder():
        assert (theirs / "weights").exists()
    with meeting_folder():
        assert not theirs.exists()


def test_a_leftover_goes_though_its_process_id_was_given_out_again(memory: Path) -> None:
    left = make(memory, f"tba-{os.getpid()}-x")
    with meeting_folder():
        assert not left.exists()


def test_the_folder_of_another_user_is_not_touched(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = make(memory, "tba-999995-x")
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with meeting_folder():
        assert (theirs / "weights").exists()


def test_links_are_not_followed(memory: Path, tmp_path: Path) -> None:
    precious = make(tmp_path, "precious")
    (memory / "tba-999995-x").symlink_to(precious)
    left = make(memory, "tba-999996-x", lock=False)
    (left / "lock").symlink_to(precious / "lock")
    with meeting_folder():
        assert (precious / "weights").exists()
        assert (left / "weights").exists(), "its lock is not its own"


def test_nobody_takes_a_folder_for_a_leftover_before_it_is_locked(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another start looks around at the worst moment, just before the lock is taken."""
    lock, looked = fcntl.flock, []

    def late(descriptor: int, how: int) -> None:
        if not looked:
            looked.append(True)
            with meeting_folder():
                pass
        lock(descriptor, how)

    monkeypatch.setattr(meeting, "fcntl", SimpleNamespace(flock=late, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB))
    with meeting_folder() as folder:
        assert looked
        assert (folder / "lock").exists()


SCRIPT = """
import multiprocessing, signal, sys
from pathlib import Path
from tba.launch import meeting

if __name__ == "__main__":
    meeting.MEMORY = Path(sys.argv[1])
    with meeting.meeting_folder() as folder:
        child = multiprocessing.get_context("spawn").Process(target=signal.pause)
        child.start()
        print(folder, child.pid, flush=True)
        signal.pause()
"""


def test_the_lock_goes_with_a_killed_launcher_though_its_child_lives_on(memory: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = subprocess.Popen([sys.executable, str(script), str(memory)], stdout=subprocess.PIPE, text=True)
    child = 0
    try:
        assert launcher.stdout is not None
        said, pid = launcher.stdout.readline().split()
        theirs, child = Path(said), int(pid)
        with meeting_folder():
            assert theirs.exists()
        launcher.kill()
        launcher.wait()
        os.kill(child, 0)  # still there
        with meeting_folder():
            assert not theirs.exists()
    finally:
        launcher.kill()
        launcher.wait()
        if child:
            os.kill(child, signal.SIGKILL)


def test_without_room_in_memory_the_folder_is_a_temporary_one(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = make(memory, "tba-999995-x")

    def usage(path: Path) -> SimpleNamespace:
        assert not left.exists(), "leftovers take room"
        return SimpleNamespace(free=1000)

    monkeypatch.setattr(meeting.shutil, "disk_usage", usage)
    with meeting_folder(999) as folder:
        assert folder.parent == memory
    left = make(memory, "tba-999995-x")
    with meeting_folder(1000) as folder:
        assert folder.parent == Path(tempfile.gettempdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_room_for_weights_is_that_of_two_copies_in_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    save_tiny_model(tmp_path / "model")
    model = load_model(str(tmp_path / "model"))
    model.to(dtype).save_pretrained(tmp_path / "model")
    assert published_bytes(tmp_path / "model") == 2 * 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "content", [b"", b"short", b"\xff" * 64, b"\x02" + bytes(7) + b"[]", b"\x08" + bytes(7) + b'{"a": 1}']
)
def test_files_that_are_no_weights_take_no_room(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert published_bytes(tmp_path) == 0
    assert published_bytes(tmp_path / "missing") == 0
