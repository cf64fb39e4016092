"""What `tba.train` gives back: a run's folder, its summary, its newest model, shown in a line or as a small table."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from tba.learn.checkpoint import list_checkpoints
from tba.runs.best import best_model
from tba.runs.callbacks import was_stopped_early
from tba.runs.summary import SUMMARY


class Result:
    """A finished or stopped run: its folder, its summary, its newest model."""

    def __init__(self, run: Path, finished: bool) -> None:
        self.run = run
        self.finished = finished

    @property
    def stopped_early(self) -> bool:
        """Whether it ended before its last step because a callback asked for it, or by `evaluation.patience`."""
        return not self.finished and was_stopped_early(self.run)

    @property
    def summary(self) -> dict[str, Any]:
        path = self.run / SUMMARY
        summary: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return summary

    @property
    def model(self) -> Path | None:
        """The newest checkpoint's model: a Hugging Face directory."""
        found = list_checkpoints(self.run)
        return found[-1].model if found else None

    @property
    def best_model(self) -> Path | None:
        """The model with the best evaluation, a Hugging Face directory. None if no version that was evaluated is better
        than the model that training started from."""
        return best_model(self.run)

    def __repr__(self) -> str:
        told = "".join(f", {name} {value}" for name, value in self._rows().items() if "→" in value)
        return f"Result({str(self.run)!r}, {'finished' if self.finished else 'stopped'}{told})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        cells = {"run": str(self.run), **self._rows(), "model": str(self.model or "no checkpoint yet")}
        rows = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in cells.items())
        return f"<table>{''.join(rows)}</table>"

    def _rows(self) -> dict[str, str]:
        summary = self.summary
        if not summary:
            return {}
        judged_by = summary["judged_by"]
        rows = {
            f"held-out {judged_by.removeprefix('held_out_').replace('_', ' ')}": _change(summary, judged_by),
            "reward of new responses": _change(summary, "reward"),
            "steps": f"{summary['steps']} in {summary['wall_seconds']:.0f} s",
        }
        return {name: text for name, text in rows.items() if text}


def _change(summary: dict[str, Any], name: str) -> str:
    first, last = summary.get(f"{name}_first"), summary.get(f"{name}_last")
    return "" if first is None or last is None else f"{first:.3f} → {last:.3f}"
