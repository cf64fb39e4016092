"""Short runs of the embedded default, for benchmarks that need a whole one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tba.api import start
from tba.config.settings import Config
from tba.runs.metrics import read_metrics

FIRST_GROUPS = 16
"""Groups the embedded default collects before its first step."""
SEARCHING = ("generate", "reference", "score", "send")


@dataclass(frozen=True)
class Finished:
    summary: Mapping[str, Any]
    train: list[dict[str, Any]]
    search: list[dict[str, Any]]

    @property
    def seconds_a_step(self) -> float:
        """From the first step to the last."""
        return float(self.train[-1]["time"] - self.train[0]["time"]) / (len(self.train) - 1)

    @property
    def first_fill_seconds(self) -> float:
        """What the Searchers took for the first groups, by their first reports, each of a first batch."""
        first = {r["source"]: r for r in reversed(self.search)}.values()
        groups_a_second: float = sum(
            r["groups"] / sum(r.get(f"seconds/{kind}", 0.0) for kind in SEARCHING) for r in first
        )
        return FIRST_GROUPS / groups_a_second


def run_embedded(**settings: Mapping[str, Any]) -> Finished:
    with embedded_run(**settings) as (_, finished):
        return finished


@contextmanager
def embedded_run(**settings: Mapping[str, Any]) -> Iterator[tuple[Path, Finished]]:
    """A run with these sections over the embedded default, without evaluation; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as root:
        sections = {name: dict(values) for name, values in settings.items()}
        sections.setdefault("run", {}).update(root=root, name="bench", display="none")
        sections["evaluation"] = {"period": 0}
        result = start(Config.embedded(**sections))
        records = read_metrics(result.run)
        train, search = ([r for r in records if r["kind"] == kind] for kind in ("train", "search"))
        yield result.run, Finished(result.summary, train, search)


def accuracy_of(model: Path, **settings: Mapping[str, Any]) -> float:
    """On the arithmetic task's held-out problems, greedily."""
    from tba.build.models import build_engine
    from tba.build.tasks import build_evaluator, build_scorer, build_task

    config = Config.embedded(model={"path": str(model)}, **settings)
    engine, tokenizer, loaded = build_engine(config)
    task = build_task(config, tokenizer, loaded)
    with build_scorer(config, task) as scorer:
        return float(build_evaluator(config, engine, scorer, task, tokenizer=tokenizer)().values["accuracy"])
