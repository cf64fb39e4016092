"""The summary of a run in words: a row for each thing that it tells, with its keys in `summary.json`.

The table at the end of a run and `tba compare` have these rows, so that a number has one name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tba.runs.ledger import FATES
from tba.runs.wording import clock, number, percent
from tba.tasks import Headline
from tba.tasks.base import Beside

Summary = Mapping[str, Any]
REWARD_OF_NEW = "reward of new responses"
_ENDS_OF_RESPONSES = {
    "trained": "trained on",
    "buffered": "never drawn from the buffer",
    "evicted": "evicted before they were drawn",
    "too_stale": "too stale before they were drawn",
    "skipped": "skipped for equal rewards",
    "failed": "without a usable reward",
    "left_out": "cut off and left out",
    "dropped": "alone in their group",
    "lost": "lost with a Searcher",
    "in_flight": "unfinished at the end",
}


@dataclass(frozen=True)
class SummaryRow:
    label: str
    keys: tuple[str, ...]
    """In `summary.json`."""
    text: Callable[[Summary], str | None]
    """None: the run does not tell."""
    at_end: bool = False
    """Whether the table at the end of a run shows it."""


def held_out(name: str) -> str:
    """What an evaluation's number is called: `held-out accuracy`."""
    return f"held-out {name.replace('_', ' ')}"


def summary_rows(headline: Headline) -> list[SummaryRow]:
    name = headline.summary_name
    return [
        SummaryRow(held_out(headline.metric), _keys(name, "first", "last", "last_se"), _headline(name), at_end=True),
        SummaryRow(f"best {held_out(headline.metric)}", (f"{name}_best",), _one(f"{name}_best", ".3f")),
        *(_beside(beside) for beside in headline.beside),
        SummaryRow(REWARD_OF_NEW, _keys("reward", "first", "last"), _change("reward", ".3f"), at_end=True),
        *_OF_EVERY_RUN,
    ]


def _keys(name: str, *ends: str) -> tuple[str, ...]:
    return tuple(f"{name}_{end}" for end in ends)


def _one(key: str, form: str) -> Callable[[Summary], str | None]:
    return lambda summary: None if summary.get(key) is None else number(summary[key], form)


def _change(name: str, form: str) -> Callable[[Summary], str | None]:
    def text(summary: Summary) -> str | None:
        first, last = summary.get(f"{name}_first"), summary.get(f"{name}_last")
        return None if last is None else f"{number(first, form)} → {number(last, form)}"

    return text


def _headline(name: str) -> Callable[[Summary], str | None]:
    def text(summary: Summary) -> str | None:
        change, error = _change(name, ".3f")(summary), summary.get(f"{name}_last_se")
        return change if change is None or error is None else f"{change} ± {error:.3f}"

    return text


def _beside(beside: Beside) -> SummaryRow:
    label = held_out(beside.label or beside.name)
    keys = _keys(beside.name, "first", "last")
    return SummaryRow(label, keys, _change(beside.name, beside.form), at_end=bool(beside.label))


def _together(form: str, **keys: str) -> Callable[[Summary], str | None]:
    """`6,502 generated, 13,979 trained`, from the words and their keys."""

    def text(summary: Summary) -> str | None:
        known = [f"{number(summary[key], form)} {word}" for word, key in keys.items() if summary.get(key) is not None]
        return ", ".join(known) or None

    return text


def _steps(summary: Summary) -> str:
    return f"{summary['steps']:,} in {clock(summary['wall_seconds'])}"


def _staleness(summary: Summary) -> str:
    return ", ".join(f"{name} {summary[f'staleness_{name}']}" for name in ("p50", "p90", "max"))


def _waiting(summary: Summary) -> str | None:
    shares = {"Trainer": summary.get("trainer_wait_fraction"), "Searchers": summary.get("searcher_wait_fraction")}
    return ", ".join(f"{who} {percent(share, '.1f')}" for who, share in shares.items())


def _publishing(summary: Summary) -> str:
    return f"Trainer {percent(summary.get('publish_fraction'), '.1f')}"


def _overlap(summary: Summary) -> str | None:
    share = summary.get("overlap_fraction")
    return None if share is None else percent(share)


def _failed(summary: Summary) -> str | None:
    count = summary.get("rewards_failed")
    return f"{count:,} (events in metrics.jsonl)" if count else None


def _count(key: str) -> Callable[[Summary], str | None]:
    return lambda summary: f"{summary[key]:,}" if summary.get(key) else None


def _alarms(summary: Summary) -> str | None:
    names = [name.removeprefix("alarms/") for name in summary if name.startswith("alarms/")]
    return f"{', '.join(names)} (events in metrics.jsonl, docs/tuning.md)" if names else None


def _seconds(who: str) -> tuple[tuple[str, ...], Callable[[Summary], str | None]]:
    words = {"working": "busy", "waiting": "wait", "publishing": "publish"}
    keys = {word: f"{who}_{kind}_seconds" for word, kind in words.items()}
    return tuple(keys.values()), _together(",.0f", **keys)


_OF_EVERY_RUN = (
    SummaryRow("loss", _keys("loss", "first", "last"), _change("loss", ".4g")),
    SummaryRow("KL to the reference", ("kl_last",), _one("kl_last", ".2f")),
    SummaryRow("steps", ("steps", "wall_seconds"), _steps, at_end=True),
    SummaryRow(
        "tokens/s",
        ("tokens_generated_per_second", "tokens_trained_per_second"),
        _together(",.0f", generated="tokens_generated_per_second", trained="tokens_trained_per_second"),
        at_end=True,
    ),
    SummaryRow(
        "tokens",
        ("tokens_generated", "tokens_trained"),
        _together(",", generated="tokens_generated", trained="tokens_trained"),
    ),
    SummaryRow("staleness in steps", _keys("staleness", "p50", "p90", "max"), _staleness, at_end=True),
    SummaryRow("time spent waiting", ("trainer_wait_fraction", "searcher_wait_fraction"), _waiting, at_end=True),
    SummaryRow("time spent publishing", ("publish_fraction",), _publishing, at_end=True),
    SummaryRow("overlap of search and training", ("overlap_fraction",), _overlap),
    SummaryRow("seconds of the Trainer", *_seconds("trainer")),
    SummaryRow("seconds of all Searchers", *_seconds("searchers")),
    SummaryRow("responses generated", ("responses_generated",), _count("responses_generated")),
    *(
        SummaryRow(f"responses {_ENDS_OF_RESPONSES[fate]}", (f"responses_{fate}",), _count(f"responses_{fate}"))
        for fate in FATES
    ),
    SummaryRow("responses cut off by the length limit", ("responses_cut",), _count("responses_cut")),
    SummaryRow("failed rewards", ("rewards_failed",), _failed, at_end=True),
    SummaryRow("groups dropped", ("groups_dropped",), _count("groups_dropped")),
    SummaryRow("Searchers started again", ("searchers_restarted",), _count("searchers_restarted")),
    SummaryRow("alarms", ("alarms",), _alarms, at_end=True),
)
