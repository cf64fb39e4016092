"""Pictures of runs, with matplotlib (the extra `plots`), drawn without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tba.types import TbaError

if TYPE_CHECKING:
    from tba.compare import Point

Curve = Sequence[tuple[int, float, float | None]]
"""Steps with a value and its standard error."""


def draw_front(points: Sequence[Point], front: Sequence[Point], path: Path) -> None:
    """Every evaluation as (KL, win rate), joined within a run in the order of steps; the front as a staircase."""
    figure, axes = _figure()
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
            label=name,
        )
        last = own[-1]
        axes.annotate(f"step {last.step}", (last.kl, last.win_rate), (4, 4), textcoords="offset points", size=7)
    corners = [p.kl for p in front], [p.win_rate for p in front]
    axes.step(*corners, where="post", color="black", linewidth=1.6, label="Pareto front")
    axes.scatter(*corners, s=60, facecolors="none", edgecolors="black", zorder=3)
    axes.axhline(0.5, color="grey", linewidth=0.6, linestyle=":")
    axes.set_xlabel("KL(policy ‖ reference), nats per response")
    axes.set_ylabel("win rate against reference summaries")
    _save(figure, axes, path)


def draw_accuracy(curves: Mapping[str, Curve], path: Path) -> None:
    """Held-out accuracy over steps, with a band of one standard error."""
    figure, axes = _figure()
    for name, curve in curves.items():
        steps, values = [step for step, _, _ in curve], [value for _, value, _ in curve]
        errors = [error or 0.0 for _, _, error in curve]
        (line,) = axes.plot(steps, values, marker="o", markersize=3, label=name)
        low, high = ([v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1))
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out accuracy")
    _save(figure, axes, path)


def _figure() -> tuple[Any, Any]:
    try:
        # The figure itself, not pyplot: no window system, and nothing global.
        from matplotlib.figure import Figure
    except ImportError:
        raise TbaError("--plot needs matplotlib: pip install 'tba[plots]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="lower right")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise TbaError(f"cannot draw to {path}: {error}") from None
