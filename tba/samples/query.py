"""Which responses of a run are asked for, as words of the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from tba.types import Steps, TbaError

Order = Literal["newest", "best", "worst"]


@dataclass(frozen=True)
class Query:
    """Conditions add up: the worst responses to one prompt, of the weights of some steps."""

    order: Order = "newest"
    """`newest`: the newest groups, one response of each. With a prompt: groups from its first to its newest."""
    prompt: str | None = None
    """The id of a prompt, or a text that is in one."""
    steps: Steps | None = None
    """Of the weights that made the responses."""
    num: int = 4


def read_steps(text: str) -> Steps:
    """`40` or `40-60`. TbaError for anything else."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise TbaError(f"--step = {text!r} is no step and no range of steps: give one such as 40, or 40-60")
    return Steps(first, last)


def read_num(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise TbaError(f"--num = {text!r} is no number of responses: give 1 or more")
    return int(text)
