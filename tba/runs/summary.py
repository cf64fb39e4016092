"""A run in one flat record, computed from its metrics: the one source of the end table and of `tba compare`."""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tba.runs.ledger import ledger_values
from tba.runs.metrics import read_metrics
from tba.runs.overlap import overlap_fraction
from tba.runs.time_spent import time_values
from tba.tasks import Headline, headline_of
from tba.tasks.base import Beside, TaskSettings

SUMMARY = "summary.json"
REWARD_WINDOW = 10
"""Reward at the start and the end is the mean over this many reports of Searchers."""


def headline_of_run(run: Path) -> Headline:
    """What the run's task is judged by, from the settings in its folder; that of the default task if there are none."""
    try:
        kind = tomllib.loads((run / "config.toml").read_text("utf-8"))["task"]["kind"]
    except (OSError, ValueError, KeyError, TypeError):
        return TaskSettings.headline
    return headline_of(str(kind))


def summarise(records: Sequence[Mapping[str, Any]], headline: Headline = TaskSettings.headline) -> dict[str, Any]:
    train = [r for r in records if r["kind"] == "train"]
    search = [r for r in records if r["kind"] == "search"]
    evals = sorted((r for r in records if r["kind"] == "eval"), key=lambda r: r["step"])
    events = Counter(r.get("event") for r in records if r["kind"] == "event")
    wall = max((r["time"] for r in records), default=0.0)
    counts: Counter[int] = Counter()
    for record in train:
        counts.update({int(k): v for k, v in record["staleness/counts"].items()})
    waited, published = _shares(train)
    loss_first, loss_last = first_and_last(train, "loss")
    return {
        "judged_by": headline.summary_name,
        **_span(headline, evals),
        **{key: value for beside in headline.beside for key, value in _ends(beside, evals).items()},
        "reward_first": _mean([r["reward"] for r in search[:REWARD_WINDOW]]),
        "reward_last": _mean([r["reward"] for r in search[-REWARD_WINDOW:]]),
        "loss_first": loss_first,
        "loss_last": loss_last,
        "kl_last": next((r["kl"] for r in reversed(search) if r["kl"] is not None), None),
        "steps": train[-1]["step"] if train else 0,
        "wall_seconds": round(wall, 3),
        "tokens_generated": sum(r["tokens"] for r in search),
        "tokens_trained": train[-1]["num_tokens"] if train else 0,
        "tokens_generated_per_second": _rate(sum(r["tokens"] for r in search), wall),
        "tokens_trained_per_second": _rate(train[-1]["num_tokens"] if train else 0, wall),
        "trainer_wait_fraction": waited,
        "publish_fraction": published,
        "searcher_wait_fraction": _searcher_wait(search),
        "overlap_fraction": overlap_fraction(train),
        "staleness_p50": _quantile(counts, 0.5),
        "staleness_p90": _quantile(counts, 0.9),
        "staleness_max": max(counts, default=0),
        "rewards_failed": sum(r["failed"] for r in search),
        "groups_dropped": sum(r["groups_dropped"] for r in search),
        "searchers_restarted": events["searcher_restarted"],
        "alarms": events["alarm"],
        **_alarms(records),
        **ledger_values(records),
        **time_values(records),
    }


def _alarms(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How often each alarm was raised, by its name."""
    return dict(Counter(f"alarms/{r['alarm']}" for r in records if r.get("event") == "alarm"))


def first_and_last(records: Sequence[Mapping[str, Any]], name: str) -> tuple[float | None, float | None]:
    """Means of a number over the first and the last tenth of the records; None where it was never a number."""
    values = [record[name] for record in records if record.get(name) is not None]
    count = max(1, len(values) // 10)
    return _mean(values[:count]), _mean(values[-count:])


def _span(headline: Headline, evals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metric, name = headline.metric, headline.summary_name
    found = [e for e in evals if e.get(metric) is not None]
    return {
        f"{name}_first": found[0][metric] if found else None,
        f"{name}_last": found[-1][metric] if found else None,
        f"{name}_last_se": found[-1].get(f"{metric}_se") if found else None,
        f"{name}_best": max((e[metric] for e in found), default=None),
    }


def _ends(beside: Beside, evals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [e[beside.metric] for e in evals if e.get(beside.metric) is not None]
    return {f"{beside.name}_first": found[0] if found else None, f"{beside.name}_last": found[-1] if found else None}


def write_summary(run: Path) -> dict[str, Any]:
    summary = summarise(read_metrics(run), headline_of_run(run))
    partial = run / f".{SUMMARY}.partial"
    partial.write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    os.replace(partial, run / SUMMARY)
    return summary


def _shares(train: Sequence[Mapping[str, Any]]) -> tuple[float | None, float | None]:
    """The Trainer's time from the first step to the last spent waiting, and publishing. Each process counts anew."""
    waited = published = total = 0.0
    for before, after in pairwise(train):
        spent = {k: v - before.get(k, 0.0) for k, v in after.items() if k.startswith("seconds/")}
        if any(seconds < 0 for seconds in spent.values()):
            continue  # the run was resumed in between
        waited += spent.get("seconds/wait", 0.0) + spent.get("seconds/search", 0.0)
        published += spent.get("seconds/publish", 0.0)
        total += sum(spent.values())
    return (round(waited / total, 5), round(published / total, 5)) if total else (None, None)


def _searcher_wait(search: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of the Searchers' time spent waiting: for weights, scores, or a Trainer that does not take groups."""
    last = {r["source"]: r for r in search}  # a Searcher that was started again has another name
    starting = ("seconds/start", "seconds/join")
    total = sum(v for r in last.values() for k, v in r.items() if k.startswith("seconds/") and k not in starting)
    waits = ("seconds/wait", "seconds/score", "seconds/send")
    waited = sum(r.get(kind, 0.0) for r in last.values() for kind in waits)
    return round(waited / total, 5) if total else None


def _quantile(counts: Mapping[int, int], share: float) -> int:
    """The smallest staleness that at least `share` of the drawn trajectories do not exceed."""
    total, seen = sum(counts.values()), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= share * total:
            return value
    return 0


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _rate(amount: float, seconds: float) -> float | None:
    return round(amount / seconds, 1) if seconds else None
