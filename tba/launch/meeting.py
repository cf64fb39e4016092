"""Where the processes of a run meet: a private folder in memory that holds their socket and the published weights.

Its owner holds a lock on a file in it for as long as it lives, so a folder whose lock is free was left behind. The
kernel drops the lock with its holder, however that ends. Process ids would not do: containers that share /dev/shm do
not share them.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
_PREFIX = "tba-"
_LOCK = "lock"
_MAX_HEADER_BYTES = 100_000_000  # of a safetensors file, by its definition
_BYTES_PER_WEIGHT = 4
_NUM_COPIES = 2
"""A publication is written beside the newest one, which Searchers may be reading."""


@contextmanager
def meeting_folder(num_bytes: int = 0) -> Iterator[Path]:
    """A folder of our own, gone at the end of the block: in memory if it has so much room, else among temporary files.

    Folders that processes of ours left behind are removed first. Those of others, and what cannot be removed, stay.
    """
    for root in (MEMORY, Path(tempfile.gettempdir())):
        _remove_leftovers(root)  # before the room is measured, which they take
    root = _root(num_bytes)
    # Under a hidden name until it is locked: an unlocked one is taken for a leftover.
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
    # Processes that are started do not inherit the descriptor (O_CLOEXEC), or they would keep the lock alive.
    lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = hidden.rename(root / hidden.name.removeprefix("."))
        try:
            yield folder
        finally:
            _remove(folder)
    finally:
        os.close(lock)


def published_bytes(model: Path) -> int:
    """What the published weights of a model folder take; 0 if its files do not say."""
    return (num_weights(model) or 0) * _BYTES_PER_WEIGHT * _NUM_COPIES


def num_weights(model: Path) -> int | None:
    """How many weights a model folder has, by the headers of its files; None if they do not say."""
    count = 0
    try:
        for path in model.glob("*.safetensors"):
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
            count += sum(math.prod(part["shape"]) for name, part in header.items() if name != "__metadata__")
    except (OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None  # whoever loads the model tells what is wrong with it
    return count or None


def _root(num_bytes: int) -> Path:
    if os.access(MEMORY, os.W_OK):
        with suppress(OSError):
            if shutil.disk_usage(MEMORY).free > num_bytes:
                return MEMORY
    return Path(tempfile.gettempdir())


def _remove_leftovers(root: Path) -> None:
    with suppress(OSError):
        for name in os.listdir(root):
            if name.startswith(_PREFIX):
                _remove_if_left(root / name)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of ours whose lock nobody holds. One without the file is not known to be a leftover."""
    with suppress(OSError):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(directory).st_uid != os.geteuid():
                return
            lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(folder)
            finally:
                os.close(lock)
        finally:
            os.close(directory)


def _remove(folder: Path) -> None:
    with suppress(RecursionError):  # folders within folders, a thousand deep
        shutil.rmtree(folder, ignore_errors=True)
