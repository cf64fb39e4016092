"""What TensorBoard, W&B and trackio are sent of a record: charts in groups, and rates in place of growing counts.

Records keep the names that scripts read; what is made here is for the eye. The part before the first slash is the group
of a chart in all three, and no group has one chart alone. Seconds so far become shares of the time since the process's
last record, and counts so far become counts per second. docs/metrics.md has the list.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tba.runs.time_spent import PROCESS_SECONDS, SECONDS

_RENAMED = {"clipped_fraction": "clip_ratio/region_mean"}
"""Where TRL has another name for the same number."""
_GROUPS = {
    "staleness/": "staleness/",
    "residual/staleness_": "staleness/residual_",
    "ess": "off_policy/ess",
    "log_ratio": "off_policy/log_ratio",
    "log_pi_mu/": "off_policy/log_pi_mu/",
    "engine_gap/": "off_policy/engine_gap/",
    "stale/": "off_policy/stale/",
    "buffer/": "buffer/",
    "overlap/": "overlap/",
    "step_time": "perf/step_time",
    "memory_mb": "perf/memory_mb",
}
"""Of the records of the Trainer: how a name begins there, and how it begins as a chart. All others are in `train/`."""
_TIMES = {"train": "time/", "search": "search_time/"}
_RESPONSES = "responses/"
_GAUGES = ("responses/unfinished", "responses/pending")
_TOTALS = ("buffer/evicted", PROCESS_SECONDS)
_OF_TIME = (SECONDS, PROCESS_SECONDS)
_AXES = ("step", "time")

Numbers = Mapping[str, float]
"""Those of a record, by the names that it has for them."""


class Charts:
    """Of one run, from now on: remembers the last record of each process, so that growth can be told. A process that is
    started again has another name, or a run that is resumed begins with other charts."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, Any], Numbers] = {}

    def of(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Names and values of the charts that this record adds a point to."""
        kind, source = record["kind"], record.get("source")
        numbers = {name: float(value) for name, value in record.items() if _is_number(value)}
        before = self._last.get((kind, source), {})
        self._last[kind, source] = numbers
        shown = {name: value for name, value in numbers.items() if name not in _AXES and not _grows(name)}
        return {
            **{_chart_name(kind, name): value for name, value in shown.items()},
            **_shares(kind, numbers, before),
            **_rates(numbers, before),
            **(_speed(numbers, before) if kind == "train" else {}),
        }


def _chart_name(kind: str, name: str) -> str:
    if kind != "train":
        return name if name in _GAUGES else f"{kind}/{name}"
    name = _RENAMED.get(name, name)
    beginning = next((known for known in _GROUPS if name.startswith(known)), None)
    return f"train/{name}" if beginning is None else _GROUPS[beginning] + name.removeprefix(beginning)


def _grows(name: str) -> bool:
    """Whether the number is a total, of which the eye wants to see the growth."""
    return name.startswith(SECONDS) or (name.startswith(_RESPONSES) and name not in _GAUGES) or name in _TOTALS


def _shares(kind: str, numbers: Numbers, before: Numbers) -> dict[str, float]:
    """Of the time since the process's last record, or since its start."""
    passed = numbers.get(PROCESS_SECONDS, 0.0) - before.get(PROCESS_SECONDS, 0.0)
    if passed <= 0 or kind not in _TIMES:
        return {}
    spent = {name: value - before.get(name, 0.0) for name, value in numbers.items() if name.startswith(SECONDS)}
    return {_TIMES[kind] + name.removeprefix(SECONDS): value / passed for name, value in spent.items()}


def _rates(numbers: Numbers, before: Numbers) -> dict[str, float]:
    """Of counts that the record before has, too."""
    passed = numbers.get(PROCESS_SECONDS, 0.0) - before.get(PROCESS_SECONDS, math.inf)
    if passed <= 0:
        return {}
    counts = [name for name in numbers if name in before and _grows(name) and not name.startswith(_OF_TIME)]
    return {f"{name}_per_second": (numbers[name] - before[name]) / passed for name in counts}


def _speed(numbers: Numbers, before: Numbers) -> dict[str, float]:
    """Of the Trainer, from the end of the last step to the end of this one, under the names of TRL's async trainer."""
    seconds = numbers["time"] - before.get("time", math.inf)
    if seconds <= 0:
        return {}
    tokens = {"perf/trained_tok_s_wall_clock": numbers["tokens"] / seconds} if "tokens" in numbers else {}
    return {"perf/step_s": seconds, **tokens}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
