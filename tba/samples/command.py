"""`tba samples RUN`: responses of a run, from its rollout log alone."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console

from tba.samples.find import find
from tba.samples.query import Query
from tba.samples.view import show
from tba.types import TbaError

ROLLOUTS = "rollouts"
HELP = """
  RUN              a run of any age: going on, finished or stopped; if left out, the newest one in runs/
  --best           the responses of highest reward, each to another prompt
  --worst          the responses of lowest reward
  --prompt TEXT    responses to one prompt over time: its id, or a text that is in it
  --step A         responses that the weights of step A made; A-B for a range of steps
  --num N          how many responses to show (default 4)
  --full           do not cut long texts
  --json           one JSON record a line, with all fields and nothing cut
"""


def show_samples(run: Path, query: Query, *, full: bool = False, as_json: bool = False) -> None:
    """Print them. TbaError if there are none."""
    if not run.is_dir():
        raise TbaError(f"there is no run at {run}")
    found = find(run, run / ROLLOUTS, query)
    if as_json:
        for sample in found.samples:
            print(json.dumps(sample.record()))
        return
    show(Console(highlight=False), str(run), found, query, full=full)
