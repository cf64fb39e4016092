"""The words for what a process is doing. The display, `tba status`, events and logs all have them from here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tba.runs.activity import ENDING, IDLE, JOINING, PREPARING, STARTING, TURN

_BESIDE_DETAIL = {
    "wait": "waiting",
    "score": "waiting for",
    "generate": "generating",
    "load": "loading",
    "compute": "training",
    "publish": "publishing",
    "checkpoint": "saving a checkpoint of",
    "restore": "restoring",
    "search": "waiting for Searchers to explore",
}
"""By kind: what stands before the detail."""
_WITHOUT_DETAIL = {
    "fill": "filling the buffer",
    "send": "waiting for the Trainer to take groups",
    "reference": "computing the reference's log-probabilities",
    "draw": "drawing groups",
    "collate": "making a batch",
    "optimize": "updating the weights",
    "merge": "merging new groups",
    "log": "writing metrics",
    "read": "reading recorded groups",
    JOINING: "waiting for the first weights",
    ENDING: "waiting for Searchers to end",
    TURN: "waiting for its turn",
    IDLE: "idle",
}
_DETAIL_ALONE = {PREPARING, STARTING, "evaluate"}


def doing_text(activity: Mapping[str, Any]) -> str:
    """What a process says it is doing, on one line: `first evaluation: 12/64 prompts`."""
    return f"{_phase(activity['doing'], activity['detail'])}{_count_text(activity)}"


def _phase(kind: str, detail: str) -> str:
    if kind in _WITHOUT_DETAIL:
        return _WITHOUT_DETAIL[kind]
    if kind in _DETAIL_ALONE and detail and not detail.startswith("version"):  # tba 0.1.0 evaluated `version 3`
        return detail
    return f"{_BESIDE_DETAIL.get(kind, kind)} {detail}".strip()


def _count_text(activity: Mapping[str, Any]) -> str:
    total = activity.get("total", 0)
    return f": {activity['done']:,}/{total:,} {activity['unit']}".rstrip() if total else ""
