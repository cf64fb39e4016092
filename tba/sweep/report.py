"""The end of a sweep: a table, the same as `sweep.md` and `sweep.json`, and a plot where matplotlib is installed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tba.config.text import to_toml
from tba.runs.plots import ArmCurves, draw_arms
from tba.sweep.arms import Arm, nested, short_names, shown
from tba.sweep.elimination import Stopped, mean_of
from tba.sweep.record import Result
from tba.sweep.settings import Sweep
from tba.types import TbaError

MARKDOWN, JSON, PLOT = "sweep.md", "sweep.json", "sweep.png"


@dataclass(frozen=True)
class ArmResult:
    """An arm over its seeds."""

    arm: Arm
    results: Sequence[Result]
    stopped: Stopped | None
    minimize: bool = False

    @property
    def values(self) -> list[float]:
        return [r.value for r in self.results if r.value is not None]

    @property
    def mean(self) -> float | None:
        return mean_of(self.results) if self.values else None

    @property
    def standard_error(self) -> float | None:
        """Of the mean, by the spread over seeds; None for a single one."""
        values, count = self.values, len(self.values)
        if count < 2:
            return None
        mean = sum(values) / count
        return math.sqrt(sum((v - mean) ** 2 for v in values) / (count - 1) / count)

    def as_record(self) -> dict[str, Any]:
        return {
            "arm": self.arm.name,
            "settings": dict(self.arm.settings),
            "seeds": [r.seed for r in self.results],
            "values": [r.value for r in self.results],
            "mean": self.mean,
            "standard_error": self.standard_error,
            "largest_drop": max((r.largest_drop(minimize=self.minimize) for r in self.results), default=0.0),
            "seconds": sum(r.seconds for r in self.results),
            "stopped": self.stopped.reason if self.stopped else None,
        }


def report(
    sweep: Sweep, results: Sequence[Result], stopped: Mapping[str, Stopped], space: Path, console: Console
) -> None:
    """Write the files and show the table."""
    ranked = rank(sweep, results, stopped)
    metric = next((r.metric for r in results if r.value is not None), sweep.settings.metric)
    _write(sweep.folder / JSON, json.dumps(_as_json(sweep, ranked, metric), indent=2, ensure_ascii=False) + "\n")
    _write(sweep.folder / MARKDOWN, markdown(sweep, ranked, metric, space))
    console.print(_table(sweep, ranked, metric))
    if ranked and ranked[0].mean is not None:
        console.print(f"best: {_flags(ranked[0].arm) or ranked[0].arm.name}", markup=False, soft_wrap=True)
    try:
        draw_arms([_curves(found) for found in ranked if found.values], metric, sweep.folder / PLOT)
        plot = f", {PLOT}"
    except TbaError as error:
        plot = f" (no plot: {error})"
    console.print(f"{sweep.folder}: {MARKDOWN}, {JSON}{plot}", markup=False, soft_wrap=True)


def rank(sweep: Sweep, results: Sequence[Result], stopped: Mapping[str, Stopped]) -> list[ArmResult]:
    """Best first: those that have had every seed, then those that were stopped early, then those that failed."""
    sign = 1.0 if sweep.settings.minimize else -1.0
    found = [
        ArmResult(
            arm,
            [r for r in results if r.arm == arm.name],
            _early(sweep, stopped.get(arm.name)),
            sweep.settings.minimize,
        )
        for arm in sweep.arms
    ]
    return sorted(found, key=lambda f: (f.mean is None, f.stopped is not None, sign * (f.mean or 0.0)))


def _early(sweep: Sweep, why: Stopped | None) -> Stopped | None:
    """Being hopeless after the last seed has stopped nothing, unless a run failed."""
    is_early = why is not None and (why.after_seeds < len(sweep.settings.seeds) or why.reason.startswith("seed "))
    return why if is_early else None


def _cells(found: ArmResult, names: Sequence[str]) -> list[str]:
    record = found.as_record()
    error = "" if record["standard_error"] is None else f" ± {record['standard_error']:.4f}"
    mean = "–" if found.mean is None else f"{found.mean:.4f}{error}"
    values = ", ".join("–" if r.value is None else f"{r.value:.4f}" for r in found.results)
    rest = [values, f"{record['largest_drop']:.4f}", f"{record['seconds']:.0f}", record["stopped"] or ""]
    return [*(shown(found.arm.settings[name]) for name in names), mean, *rest]


def _header(sweep: Sweep, metric: str) -> tuple[list[str], list[str]]:
    """The settings that arms differ in, and the columns."""
    names = list(sweep.arms[0].settings)
    short = short_names(sweep.arms[0].settings)
    what = f"{metric} ({sweep.settings.value})"
    seeds = "seeds " + ", ".join(map(str, sweep.settings.seeds))
    return names, [*(short[name] for name in names), what, seeds, "largest drop", "seconds", "stopped"]


def _table(sweep: Sweep, ranked: Sequence[ArmResult], metric: str) -> Table:
    names, columns = _header(sweep, metric)
    table = Table(*columns, title="arms, best first", title_justify="left")
    for found in ranked:
        table.add_row(*(Text(cell) for cell in _cells(found, names)))
    return table


def markdown(sweep: Sweep, ranked: Sequence[ArmResult], metric: str, space: Path) -> str:
    """The page: what was asked for, what every arm got, what came of it."""
    names, columns = _header(sweep, metric)
    settings = sweep.settings
    num_runs = sum(len(found.results) for found in ranked)
    seconds = sum(r.seconds for found in ranked for r in found.results)
    rule = (
        "Every arm got every seed."
        if settings.stop_margin is None
        else f"After {settings.stop_after} seed(s), arms whose mean was more than {settings.stop_margin:g} worse than "
        "the best arm's over the same seeds got no further ones."
    )
    lines = [
        f"# {sweep.folder.name}",
        "",
        f"Written by `tba sweep {space.name}`. {len(sweep.arms)} arms ({settings.method}), {num_runs} runs, "
        f"{seconds:.0f} seconds in all. Base: `{settings.base}`. {rule}",
        "",
        f"An arm's number is the mean over its seeds ± its standard error; a run's is the {settings.value} of its "
        f"evaluations' `{metric}`, and {'smaller' if settings.minimize else 'larger'} is better.",
        "",
        "| " + " | ".join(columns) + " |",
        "| " + " | ".join("---" for _ in columns) + " |",
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(found, names)) + " |" for found in ranked),
        "",
        "The settings of the first arm:",
        "",
        "```toml",
        _toml(sweep, ranked[0].arm).rstrip(),
        "```",
        "",
    ]
    return "\n".join(lines)


def _flags(arm: Arm) -> str:
    """What sets this arm on the command line; a variant is too long for that, and is called by its name."""
    if arm.variant:
        return " ".join(f"{name}={shown(value)}" for name, value in arm.settings.items())
    return " ".join(f"--{name.replace('_', '-')} {shown(value)}" for name, value in arm.settings.items())


def _toml(sweep: Sweep, arm: Arm) -> str:
    """What the sweep sets over its base, for one arm. A shorthand such as `task = "x"` stays one."""
    layers = [nested(sweep.fixed), arm.changes]
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            old = merged.get(key)
            merged[key] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    plain = "".join(f"{key} = {json.dumps(value)}\n" for key, value in merged.items() if not isinstance(value, dict))
    return plain + to_toml({key: value for key, value in merged.items() if isinstance(value, dict)})


def _as_json(sweep: Sweep, ranked: Sequence[ArmResult], metric: str) -> dict[str, Any]:
    return {
        "sweep": sweep.settings.model_dump(mode="json"),
        "settings": dict(sweep.fixed),
        "metric": metric,
        "best": ranked[0].arm.name if ranked[0].mean is not None else None,
        "arms": [found.as_record() for found in ranked],
    }


def _curves(found: ArmResult) -> ArmCurves:
    return ArmCurves(
        name=found.arm.name,
        runs=[[(step, value) for step, _, value in r.curve] for r in found.results if r.curve],
        values=found.values,
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise TbaError(f"cannot write {path}: {error.strerror}") from None
