"""Weights down through memory that the processes of one machine share.

A file, in /dev/shm where there is room, holds two slots; a publication writes the slot that is not the newest. Each
slot has a sequence number (odd while it is being written), its version, and a checksum of its bytes, all checked
after the reader has made its copy: a torn or mislabelled version cannot be loaded, whoever dies when. A note, which is
of any length, lies in a file beside it that the version names, and the slot has its checksum.
"""

from __future__ import annotations

import json
import mmap
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from tba.types import Version, WeightUpdate

_CLOSED, _NEWEST = 0, 1  # words of the header
_STOPPED, _FINISHED = 1, 2  # values of the first
_SEQUENCE, _EPOCH, _STEP, _CHECKSUM, _NOTE = 0, 1, 2, 3, 4  # words of a slot's head
_HEADER_WORDS = 8
_SLOT_HEAD_WORDS = 8
_POLL_SECONDS = 0.02
WEIGHTS, LAYOUT = "weights", "layout.json"

Bytes = NDArray[np.uint8]


class _Segment:
    """The mapped file: a header, then two slots of a head and `size` bytes each."""

    def __init__(self, path: Path, size: int) -> None:
        words = _HEADER_WORDS + 2 * (_SLOT_HEAD_WORDS + _words(size))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), words * 8)
        flat = np.frombuffer(self._map, dtype=np.uint64)
        self.header = flat[:_HEADER_WORDS]
        self.heads: list[NDArray[np.uint64]] = []
        self.payloads: list[Bytes] = []
        for start in (_HEADER_WORDS, _HEADER_WORDS + _SLOT_HEAD_WORDS + _words(size)):
            self.heads.append(flat[start : start + _SLOT_HEAD_WORDS])
            body = flat[start + _SLOT_HEAD_WORDS : start + _SLOT_HEAD_WORDS + _words(size)]
            self.payloads.append(body.view(np.uint8)[:size])


class SharedWeightPublisher:
    """Creates the segment in `directory` at the first publication; the layout file appears when it is ready."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._segment: _Segment | None = None
        self._notes: list[Path] = []

    def publish(self, version: Version, tensors: Mapping[str, Bytes], note: bytes = b"") -> None:
        segment = self._segment or self._create(tensors)
        slot = 1 - int(segment.header[_NEWEST])
        head, payload = segment.heads[slot], segment.payloads[slot]
        # Odd: being written. The next odd number, also after a write that was interrupted and left one.
        head[_SEQUENCE] = (head[_SEQUENCE] + np.uint64(1)) | np.uint64(1)
        offset = 0
        for tensor in tensors.values():
            payload[offset : offset + len(tensor)] = tensor
            offset += len(tensor)
        head[_EPOCH], head[_STEP] = version
        head[_CHECKSUM] = _checksum(payload, version)
        head[_NOTE] = self._write_note(version, note)
        head[_SEQUENCE] += np.uint64(1)
        segment.header[_NEWEST] = slot
        if self._segment is None:
            self._segment = segment
            self._announce(tensors)

    def _write_note(self, version: Version, note: bytes) -> int:
        """Its checksum, 0 if it is empty. The notes of the two newest versions are kept: these can be read."""
        if not note:
            return 0
        path = _note_file(self._directory, version)
        partial = path.with_suffix(".tmp")
        partial.write_bytes(note)
        os.replace(partial, path)
        self._notes = [old for old in self._notes if old != path] + [path]
        while len(self._notes) > 2:
            self._notes.pop(0).unlink(missing_ok=True)
        return _note_checksum(note)

    def close(self, finished: bool) -> None:
        if self._segment is not None:
            self._segment.header[_CLOSED] = _FINISHED if finished else _STOPPED

    def _create(self, tensors: Mapping[str, Bytes]) -> _Segment:
        size = sum(len(tensor) for tensor in tensors.values())
        path = self._directory / WEIGHTS
        words = _HEADER_WORDS + 2 * (_SLOT_HEAD_WORDS + _words(size))
        with open(path, "wb") as file:
            # Claims the pages now: a full file system is an error here, not a SIGBUS in the middle of a run.
            os.posix_fallocate(file.fileno(), 0, words * 8) if hasattr(os, "posix_fallocate") else file.truncate(
                words * 8
            )
        return _Segment(path, size)

    def _announce(self, tensors: Mapping[str, Bytes]) -> None:
        layout = {name: len(tensor) for name, tensor in tensors.items()}
        partial = self._directory / "layout.tmp"
        partial.write_text(json.dumps(layout), "utf-8")
        os.replace(partial, self._directory / LAYOUT)


class SharedWeightSubscriber:
    """Maps the segment once the Trainer has made it; gives up waiting for that when `alive` says so."""

    def __init__(self, directory: Path, alive: Callable[[], bool]) -> None:
        self._directory = directory
        self._alive = alive

    def wait_for_first(self) -> None:
        while not (self._directory / LAYOUT).exists():
            if not self._alive():
                raise ConnectionError("the Trainer ended before it published any weights")
            time.sleep(_POLL_SECONDS)

    @cached_property
    def _layout(self) -> dict[str, int]:
        layout: dict[str, int] = json.loads((self._directory / LAYOUT).read_text("utf-8"))
        return layout

    @cached_property
    def _segment(self) -> _Segment:
        return _Segment(self._directory / WEIGHTS, sum(self._layout.values()))

    @cached_property
    def _copy(self) -> Bytes:
        return np.empty(sum(self._layout.values()), dtype=np.uint8)

    @property
    def closed(self) -> bool:
        return bool(self._segment.header[_CLOSED])

    @property
    def finished(self) -> bool:
        return int(self._segment.header[_CLOSED]) == _FINISHED

    def newer_than(self, version: Version) -> WeightUpdate | None:
        while True:
            slot = int(self._segment.header[_NEWEST])
            head = self._segment.heads[slot]
            sequence, checksum, noted = int(head[_SEQUENCE]), int(head[_CHECKSUM]), int(head[_NOTE])
            found = Version(int(head[_EPOCH]), int(head[_STEP]))
            if sequence % 2 == 0 and found <= version:
                return None
            np.copyto(self._copy, self._segment.payloads[slot])
            note = self._read_note(found) if noted else b""
            if sequence % 2 == 0 and int(head[_SEQUENCE]) == sequence:
                if _checksum(self._copy, found) != checksum or (noted and _note_checksum(note) != noted):
                    raise RuntimeError(f"published weights of version {found} fail their checksum")
                return WeightUpdate(found, self._split(), note)

    def _read_note(self, version: Version) -> bytes:
        try:
            return _note_file(self._directory, version).read_bytes()
        except FileNotFoundError:
            return b""  # two newer versions have been published meanwhile, so the slot has changed too

    def _split(self) -> dict[str, Bytes]:
        tensors, offset = {}, 0
        for name, length in self._layout.items():
            tensors[name] = self._copy[offset : offset + length]
            offset += length
        return tensors


def _checksum(payload: Bytes, version: Version) -> int:
    """Seeded with a digest of the version, both its numbers, so that it vouches for the label too."""
    label = np.array(version, dtype=np.int64)
    return xxhash.xxh3_64_intdigest(payload.data, seed=xxhash.xxh3_64_intdigest(label.data))


def _note_file(directory: Path, version: Version) -> Path:
    return directory / f"note-{version.epoch}-{version.step}"


def _note_checksum(note: bytes) -> int:
    """Never 0, which stands for no note."""
    return xxhash.xxh3_64_intdigest(note) or 1


def _words(num_bytes: int) -> int:
    return -(-num_bytes // 8)
