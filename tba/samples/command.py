"""`tba samples RUN`: responses of a run, from its rollout log alone."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

from rich.console import Console

from tba.samples.find import find
from tba.samples.query import Query
from tba.samples.view import show
from tba.types import TbaError

ROLLOUTS = "rollouts"


def show_samples(run: Path, query: Query, *, full: bool = False, as_json: bool = False) -> None:
    """Print them. TbaError if there are none."""
    if not run.is_dir():
        raise TbaError(f"there is no run at {run}")
    found = find(run, run / ROLLOUTS, query)
    if as_json:
        for sample in found.samples:
            print(json.dumps(sample.record()))
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What models write need not fit the terminal's encoding. Then it is written out, as control characters are.
        sys.stdout.reconfigure(errors="backslashreplace")
    show(Console(highlight=False), str(run), found, query, full=full)
