"""Parts of `metrics.jsonl`, read without parsing the rest: what lists of many runs need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tba.runs.metrics import METRICS, parsed_line, read_metrics

_BLOCK = 1 << 16


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """In the order of the steps whose weights were evaluated, which is not the order in which they were finished."""
    return sorted(read_metrics(run, ("eval",)), key=lambda record: record["step"])


def newest_step(run: Path) -> tuple[int, float]:
    """The step that training has reached, and the time of the last record, by the end of the file alone."""
    elapsed: float | None = None
    for line in _lines_from_end(run / METRICS):
        record = parsed_line(line)
        if record is None:
            continue
        elapsed = record["time"] if elapsed is None else elapsed
        if record["kind"] == "train" or record.get("event") == "resumed":
            return record["step"], elapsed
    return 0, elapsed or 0.0


def _lines_from_end(path: Path) -> Iterator[bytes]:
    """The newest line first."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        position, rest = file.seek(0, os.SEEK_END), b""
        while position:
            size = min(_BLOCK, position)
            position = file.seek(position - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from reversed(lines)
        yield rest
