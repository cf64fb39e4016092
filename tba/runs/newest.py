"""The newest run of a folder, for commands that are given none."""

from __future__ import annotations

from pathlib import Path

from tba.runs.metrics import METRICS
from tba.runs.run_config import CONFIG
from tba.types import TbaError


def newest_run(root: Path) -> Path:
    """The run that wrote something last. TbaError if there is none."""
    runs = [path.parent for path in root.glob(f"*/{CONFIG}")]
    if not runs:
        raise TbaError(f"there is no run in {root} yet: name one, or make one with tba train")
    return max(runs, key=_last_written)


def _last_written(run: Path) -> float:
    return max(path.stat().st_mtime for name in (CONFIG, METRICS) if (path := run / name).exists())
