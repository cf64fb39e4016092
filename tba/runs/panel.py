"""The live panel: where a run stands, one subject a row, and what each of its processes is doing."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tba.runs.activity import SEARCHING, TRAINER
from tba.runs.metrics import resident_megabytes
from tba.runs.phases import doing_text
from tba.runs.progress import RunProgress
from tba.runs.terminal import Phrases
from tba.runs.wording import clock, counted, number, percent

Activities = Sequence[Mapping[str, Any]]

_MAX_SEARCHERS = 4
"""More of them share one row."""
_WORTH_A_WORD_SECONDS = 1.0
_USUAL = {*(SEARCHING - {"evaluate"}), "idle", "draw", "collate", "compute", "optimize", "merge", "log", "publish"} | {
    *("load", "turn", "search"),
}
"""Activities that come and go many times a second, unless they have a length."""


def panel(
    progress: RunProgress,
    activities: Activities = (),
    warnings: Sequence[Text] = (),
    *,
    seconds: float | None = None,
    is_stopping: bool = False,
    below: Sequence[RenderableType] = (),
) -> RenderableType:
    """`seconds`: what the clock shows; by default the time of the newest record. `below`: more to look at."""
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(ratio=1)
    for label, shown in _rows(progress, activities):
        grid.add_row(label, shown)
    alarms = [Text(f"{name}: {message}", style="red") for name, message in progress.alarms.items()]
    head = _head(progress, progress.elapsed if seconds is None else seconds)
    title = "stopping…" if is_stopping else "training" if progress.train else "starting"
    return Panel(Group(head, grid, *alarms, *warnings, *below), title=title, expand=True)


def waiting_panel(what: str, seconds: float, *, is_stopping: bool = False) -> RenderableType:
    """Before there is a run."""
    return Panel(Text(f"{clock(seconds)}  {what}"), title="stopping…" if is_stopping else "starting", expand=True)


def _head(progress: RunProgress, seconds: float) -> RenderableType:
    head = Table.grid(padding=(0, 1), expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right", no_wrap=True)
    left = progress.seconds_left
    text = f"step {progress.step:,}/{progress.num_steps:,} · {clock(seconds)}"
    head.add_row(_bar(progress.step, progress.num_steps), text + (f" · {clock(left)} left" if left is not None else ""))
    return head


def _bar(done: int, total: int, width: int | None = None) -> ProgressBar:
    """In colours that can be seen on light and on dark."""
    return ProgressBar(total, done, width=width, style="bright_black", complete_style="magenta", finished_style="green")


def _rows(progress: RunProgress, activities: Activities) -> Iterator[tuple[str, RenderableType]]:
    if progress.searchers:
        yield "new responses", Phrases(_of_new_responses(progress))
        if len(progress.rewards) > 1:
            yield "their rewards", Phrases([f"{name} {number(v, '.3f')}" for name, v in progress.rewards.items()])
    if progress.train:
        yield "drawn data", Phrases(_of_drawn_data(progress.train))
        yield "learning", Phrases(_of_learning(progress.train))
    if progress.evals:
        yield "held-out", Phrases(_of_evaluations(progress))
    doing = {activity["process"]: activity for activity in activities}
    if not progress.train:
        yield from ((name, _doing(activity)) for name, activity in doing.items())
    else:
        yield "trainer", Phrases(_of_trainer(progress.train, doing.get(TRAINER)))
        yield from _of_searchers(progress, doing)


def _of_new_responses(progress: RunProgress) -> list[str]:
    failed = counted(progress.num_failed, "reward")
    length = progress.lately("completions/mean_length")
    return [
        f"reward {number(progress.reward, '.3f')}",
        f"cut off {percent(progress.lately('completions/clipped_ratio'))}",
        f"KL {number(progress.lately('kl'), '.2f')}",
        f"length {number(length, '.0f')} tokens",
        *([f"{failed} failed"] if progress.num_failed else []),
    ]


def _of_drawn_data(train: Mapping[str, Any]) -> list[str]:
    return [
        f"reward {number(train['reward'], '.3f')}",
        f"groups without signal {percent(train.get('frac_reward_zero_std'))}",
        f"{number(train['staleness/mean'], '.1f')} steps old (at most {train['staleness/max']})",
        f"{train['buffer/size']:,} in the buffer",
    ]


def _of_learning(train: Mapping[str, Any]) -> list[str]:
    speed = train["tokens"] / max(train["step_time"], 1e-9)
    return [
        f"loss {number(train.get('loss'), '.3g')}",
        f"grad norm {number(train.get('grad_norm'), '.3g')}",
        f"{speed:,.0f} tok/s",
    ]


def _of_evaluations(progress: RunProgress) -> list[str]:
    (first_step, first), (step, value) = progress.evals[0], progress.evals[-1]
    before = [f"{first:.3f} at step {first_step}"] if len(progress.evals) > 1 else []
    return [f"{progress.judged_by.replace('_', ' ')} {value:.3f} at step {step}", *before]


def _of_trainer(train: Mapping[str, Any], activity: Mapping[str, Any] | None) -> list[str]:
    memory = train.get("memory_mb")
    return [*_worth_a_word(activity, "training"), *([] if memory is None else [_memory(memory)])]


def _of_searchers(
    progress: RunProgress, doing: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, RenderableType]]:
    names = sorted({*progress.searchers, *doing} - {TRAINER})
    if len(names) > _MAX_SEARCHERS:
        versions = [record["version"] for record in progress.searchers.values()]
        steps = f"{min(versions)}–{max(versions)}" if versions else "–"
        others = [f"{name}: {words[0]}" for name in names if (words := _worth_a_word(doing.get(name), ""))[0]]
        yield "searchers", Phrases([f"{len(names)} exploring", _speed(progress), f"weights of steps {steps}", *others])
        return
    for name in names:
        record, activity = progress.searchers.get(name), doing.get(name)
        phrases = _worth_a_word(activity, "exploring")
        if record is not None:
            version = (activity or {}).get("version", record["version"])
            phrases += [f"weights of step {version}", f"{record['tokens_per_second']:,.0f} tok/s"]
        megabytes = math.nan if activity is None else resident_megabytes(activity["pid"])
        yield name, Phrases(phrases if math.isnan(megabytes) else [*phrases, _memory(megabytes)])


def _speed(progress: RunProgress) -> str:
    return f"{progress.tokens_per_second:,.0f} tok/s"


def _worth_a_word(activity: Mapping[str, Any] | None, usual: str) -> list[str]:
    """What a process is doing, if that takes long; else what it does all the time."""
    if activity is None or (activity["doing"] in _USUAL and not activity.get("total")):
        return [usual]
    lasts = time.time() - activity["since"]
    return [doing_text(activity)] if lasts >= _WORTH_A_WORD_SECONDS else [usual]


def _doing(activity: Mapping[str, Any]) -> RenderableType:
    """With a bar, where the length of the work is known."""
    text = Text(doing_text(activity), no_wrap=True, overflow="ellipsis")
    if not activity.get("total"):
        return text
    beside = Table.grid(padding=(0, 1), expand=True)
    beside.add_column()
    beside.add_column(ratio=1)
    beside.add_row(text, _bar(activity["done"], activity["total"]))
    return beside


def _memory(megabytes: float) -> str:
    return f"{megabytes / 1000:.1f} GB"
