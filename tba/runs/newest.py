"""The newest run below a folder: what commands that look at a run take if none is named."""

from __future__ import annotations

from pathlib import Path

from tba.runs.folder import last_started
from tba.runs.overview import is_run, runs_in
from tba.runs.state import check_is_run
from tba.types import TbaError


def newest_run(root: Path) -> Path:
    """The run that was last started or resumed, in the folder itself or in a folder of runs in it, as sweeps make them.
    TbaError if there is none."""
    runs = runs_in(root) if root.is_dir() else []
    for folder in (path for path in (root.iterdir() if root.is_dir() else ()) if path.is_dir() and not is_run(path)):
        try:
            runs += runs_in(folder)
        except TbaError:
            continue  # a folder that is not ours to read
    for run in sorted(runs, key=last_started, reverse=True):
        try:
            check_is_run(run)
        except TbaError:
            continue  # `tba runs` says what is wrong with it
        return run
    raise TbaError(f"there is no run in {root} yet: name one, or make one with tba train")
