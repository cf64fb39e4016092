"""Responses on a terminal, or as plain text in a pipe, where no line is wrapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from tba.samples.find import Found, Rows
from tba.samples.query import Query
from tba.samples.sample import LoggedSample
from tba.samples.tables import number, pairs_text, parts_text, prompt_text
from tba.samples.text import one_line, shortened, visible
from tba.types import Version

_LABEL = 10
_NARROW = 50
"""Cells of a terminal below which labels get lines of their own."""
_MAX_PROMPT, _MAX_RESPONSE, _MAX_VALUE = 800, 1_600, 400
_MAX_VERSIONS = 12
_REMEDY = "; --full shows them"


def show(console: Console, title: str, found: Found, query: Query, *, full: bool) -> None:
    console.print(Text.assemble((visible(title), "bold"), f": {_overview(found, query)}"), soft_wrap=True)
    if found.of_prompt is not None:
        console.print()
        for line in _course(found.of_prompt):
            console.print(line, soft_wrap=True)
    for sample in found.samples:
        console.print()
        for label, text in _parts(sample, full=full):
            _print(console, label, text)


def _overview(found: Found, query: Query) -> str:
    held = found.overview
    shown = {
        "best": "the best, newest first among equals",
        "worst": "the worst, newest first among equals",
        "newest": "one response of each of the newest groups",
    }[query.order]
    if found.of_prompt is not None and query.order == "newest":
        shown = "one prompt, from its first group to its newest"
    if query.steps is not None:
        shown += f", weights of steps {query.steps.first} to {query.steps.last}"
    weights = f"weights of steps {_version(held.oldest)} to {_version(held.newest)}"
    return f"{held.num_responses:,} responses, {weights}. Shown: {shown}."


def _course(rows: Rows) -> Iterator[Text]:
    """How the rewards of a prompt changed: a line for each version of the weights, or for some of them."""
    yield Text(f"prompt {visible(str(rows.prompt_ids[0]))}", style="bold")
    versions = [Version(*pair) for pair in zip(rows.epochs.tolist(), rows.steps.tolist(), strict=True)]
    order = sorted(range(len(rows)), key=versions.__getitem__)
    runs = [(version, list(places)) for version, places in groupby(order, key=versions.__getitem__)]
    chosen = np.unique(np.linspace(0, len(runs) - 1, min(len(runs), _MAX_VERSIONS)).round().astype(int))
    yield Text(f"{'step':>10} {'responses':>10} {'mean':>8} {'lowest':>8} {'highest':>8}", style="dim")
    for place in chosen.tolist():
        version, places = runs[place]
        rewards = rows.rewards[places]
        numbers = (number(float(value)) for value in (rewards.mean(), rewards.min(), rewards.max()))
        cells = " ".join(f"{text:>8}" for text in numbers)
        yield Text(f"{_version(version):>10} {len(places):>10,} {cells}")
    if len(chosen) < len(runs):
        yield Text(f"{len(chosen)} of {len(runs)} versions of the weights are listed", style="dim")


def _parts(logged: LoggedSample, *, full: bool) -> Iterator[tuple[str, Text]]:
    sample = logged.sample
    record = sample.record()

    def cut(text: str, limit: int) -> str:
        return text if full else shortened(text, limit, _REMEDY)

    yield "", Text(f"── response {logged.row:,} · prompt {one_line(sample.prompt_id)} ──", style="dim")
    yield "prompt", Text(cut(prompt_text(record).rstrip("\n"), _MAX_PROMPT))
    yield "response", Text(cut(visible(sample.response), _MAX_RESPONSE) or "(empty)", style="cyan")
    yield "reward", _reward(logged, record)
    if sample.columns:
        yield "data", Text(pairs_text(sample.columns, lambda text: cut(text, _MAX_VALUE)))
    if sample.notes:
        yield "notes", Text(pairs_text(sample.notes, lambda text: cut(text, _MAX_VALUE)))
    length = "cut off by the length limit" if sample.cut_off else "ended by itself"
    yield "length", Text(f"{sample.num_tokens:,} tokens, {length}", style="yellow" if sample.cut_off else "")
    yield "made by", Text(_made_by(logged))


def _reward(logged: LoggedSample, record: dict[str, Any]) -> Text:
    sample, group = logged.sample, logged.sample.group
    parts = parts_text(record)
    text = Text.assemble((number(sample.reward), "bold"), f" ({parts})" if parts else "")
    if group.num > 1 and group.lowest == group.highest:
        return text.append(f" · all {group.num} responses of its group have this reward")
    spread = f"{number(group.lowest)} to {number(group.highest)}, mean {number(group.mean)}"
    return text.append(f" · its group of {group.num}: {spread}")


def _made_by(logged: LoggedSample) -> str:
    sample = logged.sample
    hotter = "" if sample.on_policy else ", at another temperature for exploration"
    facts = [f"{visible(sample.source)}, weights of step {_version(sample.version)}{hotter}"]
    if logged.staleness_when_merged is not None:
        facts.append(f"{_steps(logged.staleness_when_merged)} old when merged")
    facts.append(f"{_steps(logged.age)} old now")
    times = logged.times_trained
    facts.append("not trained on yet" if not times else f"trained on {'once' if times == 1 else f'{times} times'}")
    return " · ".join(facts)


def _steps(num: int) -> str:
    return f"{num} step{'' if num == 1 else 's'}"


def _version(version: Version) -> str:
    return f"{version.step}" + (f" (epoch {version.epoch})" if version.epoch else "")


def _print(console: Console, label: str, text: Text) -> None:
    """On a terminal the text is wrapped beside its label; in a pipe lines stay as they are."""
    narrow = console.is_terminal and console.width < _NARROW
    indent = 0 if not label else 2 if narrow else _LABEL
    if label and narrow:
        console.print(Text(label, style="bold"))
    for place, line in enumerate(_lines(console, text, console.width - indent)):
        beside = label if not narrow and place == 0 else ""
        console.print(Text.assemble((f"{beside:<{indent}}", "bold"), line), soft_wrap=True)


def _lines(console: Console, text: Text, width: int) -> Sequence[Text]:
    if not console.is_terminal:
        return list(text.split("\n", allow_blank=True))
    return list(text.wrap(console, max(8, width), overflow="fold"))
