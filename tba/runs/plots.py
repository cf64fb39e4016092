"""Pictures of runs, with matplotlib (the extra `plots`), drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tba.extras import install_hint
from tba.runs.summary_rows import REWARD_OF_NEW, held_out
from tba.types import TbaError

if TYPE_CHECKING:
    from tba.runs.curves import Curves
    from tba.runs.front import Point

_LARGE = 10_000
_MOST_CURVES = 10
"""As many as there are colours."""


@dataclass(frozen=True)
class ArmCurves:
    """An arm of a sweep."""

    name: str
    runs: Sequence[Sequence[tuple[float, float]]]
    """Of each seed, the evaluations: step and value."""
    values: Sequence[float]
    """What each seed counts as."""


def draw_front(points: Sequence[Point], front: Sequence[Point], path: Path) -> None:
    """Every evaluation as (KL, win rate), joined within a run in the order of steps; the front as a staircase."""
    figure, axes = _figure(1)
    for name in dict.fromkeys(point.run for point in points):
        own = [point for point in points if point.run == name]
        axes.errorbar(
            [p.kl for p in own],
            [p.win_rate for p in own],
            yerr=[p.win_rate_se or 0.0 for p in own],
            marker="o",
            markersize=4,
            linewidth=0.8,
            elinewidth=0.6,
            alpha=0.8,
            label=_label(name),
        )
        last = own[-1]
        axes.annotate(f"step {last.step}", (last.kl, last.win_rate), (4, 4), textcoords="offset points", size=7)
    corners = [p.kl for p in front], [p.win_rate for p in front]
    axes.step(*corners, where="post", color="black", linewidth=1.6, label="Pareto front")
    axes.scatter(*corners, s=60, facecolors="none", edgecolors="black", zorder=3)
    axes.axhline(0.5, color="grey", linewidth=0.6, linestyle=":")
    axes.set_xlabel("KL(policy ‖ reference), nats per response")
    axes.set_ylabel("win rate against reference summaries")
    _save(figure, [axes], path)


def draw_curves(runs: Mapping[str, Curves], path: Path, *, over: str) -> None:
    """What held-out evaluations gave, where there are any, and beside it the reward of what Searchers made. `over`
    names the axis."""
    evaluated = any(curves.evaluated for curves in runs.values())
    figure, axes = _figure(2 if evaluated else 1)
    panels = list(axes) if evaluated else [axes]
    if evaluated:
        _draw_evaluations(runs, panels[0])
    _draw_rewards(runs, panels[-1])
    for panel in panels:
        panel.set_xlabel(over)
        _shorten_ticks(panel)
    _save(figure, panels, path)


def draw_arms(arms: Sequence[ArmCurves], metric: str, path: Path) -> None:
    """Arms of a sweep, best first: on the left the mean curve of each of the first ten, on the right every value."""
    figure, (curves, values) = _figure(2)
    for number, arm in enumerate(arms[:_MOST_CURVES]):
        steps = [step for step, _ in arm.runs[0]] if arm.runs else []
        means = [
            sum(found) / len(found) for step in steps if (found := [v for run in arm.runs for s, v in run if s == step])
        ]
        curves.plot(steps, means, marker="o", markersize=3, color=f"C{number}", label=_label(arm.name))
        for run in arm.runs:
            curves.plot([s for s, _ in run], [v for _, v in run], color=f"C{number}", alpha=0.25, linewidth=0.8)
    curves.set_xlabel("step")
    curves.set_ylabel(metric.replace("_", " "))
    for number, arm in enumerate(arms):
        color = f"C{number}" if number < _MOST_CURVES else "grey"
        values.scatter(arm.values, [number] * len(arm.values), s=14, color=color)
        values.scatter([sum(arm.values) / len(arm.values)], [number], marker="|", s=120, color=color)
    values.set_yticks(range(len(arms)), [_label(arm.name) for arm in arms], fontsize=6)
    values.invert_yaxis()
    values.set_xlabel(f"{metric.replace('_', ' ')}, by seed and their mean")
    _save(figure, [curves], path)


def _draw_evaluations(runs: Mapping[str, Curves], axes: Any) -> None:
    """With a band of one standard error."""
    for number, (name, curves) in enumerate(runs.items()):
        places, values = [x for x, _, _ in curves.evaluated], [value for _, value, _ in curves.evaluated]
        errors = [error or 0.0 for _, _, error in curves.evaluated]
        axes.plot(places, values, marker="o", markersize=3, color=f"C{number}", label=_label(name))
        low, high = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
    names = sorted({curves.judged_by.replace("_", " ") for curves in runs.values()})
    axes.set_ylabel(held_out(", ".join(names)))


def _draw_rewards(runs: Mapping[str, Curves], axes: Any) -> None:
    for number, (name, curves) in enumerate(runs.items()):
        places, rewards = [x for x, _ in curves.searched], [reward for _, reward in curves.searched]
        axes.plot(places, rewards, color=f"C{number}", alpha=0.25, linewidth=0.8)
        axes.plot(places, smooth(rewards), color=f"C{number}", label=_label(name))
    axes.set_ylabel(REWARD_OF_NEW)


def _shorten_ticks(axes: Any) -> None:
    """`400 k` for 400,000, so that large numbers do not run into each other."""
    if axes.get_xlim()[1] >= _LARGE:
        from matplotlib.ticker import EngFormatter

        axes.xaxis.set_major_formatter(EngFormatter())


def smooth(values: Sequence[float]) -> list[float]:
    """Means over a window of a tenth of the run, shorter at its ends."""
    half = max(1, len(values) // 20)
    windows = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def check_can_draw() -> None:
    """TbaError, before anything else is done, if there is no matplotlib."""
    _figure(1)


def _label(name: str) -> str:
    """A dollar would begin a formula, and what begins with an underscore is left out of the legend."""
    return name.replace("$", r"\$").replace("_", " _", 1) if name.startswith("_") else name.replace("$", r"\$")


def _figure(num_panels: int) -> tuple[Any, Any]:
    try:
        # The figure itself, not pyplot: no window system, and nothing global.
        from matplotlib.figure import Figure
    except ImportError:
        raise TbaError(f"a plot needs matplotlib: {install_hint('plots')}") from None
    figure = Figure(figsize=(4 + 3 * num_panels, 4.5), layout="constrained")
    return figure, figure.subplots(1, num_panels)


def _save(figure: Any, panels: Sequence[Any], path: Path) -> None:
    for axes in panels:
        axes.grid(alpha=0.25)
        axes.legend(fontsize=8, loc="lower right")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise TbaError(f"cannot draw to {path}: {error}") from None
