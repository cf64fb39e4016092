"""Progress on the terminal: a live panel, or plain lines where there is no terminal. At the end, a summary."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tba.config.settings import Config
from tba.learn.checkpoint import list_checkpoints
from tba.runs.activity import SILENT_SECONDS, doing_text, read_activities, silences
from tba.runs.alarms import ALARM
from tba.runs.end_table import end_table
from tba.runs.ledger import PROCESS_ENDED
from tba.runs.notebook import NotebookPanel, live_panel
from tba.runs.progress import RunProgress, evaluation_text
from tba.runs.summary import SUMMARY
from tba.samples.line import PlainSamples, sample_lines
from tba.tasks import Headline

_PLAIN_SECONDS = 10.0
_TICK_SECONDS = 0.25
_QUIET_EVENTS = {"reward_failed", PROCESS_ENDED}  # counted in the panel or the summary, listed in metrics.jsonl


class Display:
    """Follows a run, in a thread, by what its processes write. Should the terminal fail, the run goes on without."""

    def __init__(self, config: Config, run: Path) -> None:
        self._run = run
        self._console = Console(stderr=False, highlight=False)
        mode = config.run.display
        can_redraw = self._console.is_terminal or self._console.is_jupyter
        self._mode = ("live" if can_redraw else "plain") if mode == "auto" else mode
        self._progress = RunProgress(run, config.trainer.num_steps, config.task.headline)
        self._config = config
        self._live: Live | NotebookPanel | None = None
        self._begun = self._last_line = time.monotonic()
        self._samples = PlainSamples()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="display", daemon=True)

    def __enter__(self) -> Display:
        if self._mode == "none":
            return self
        about = f" · {self._run} · {title(self._config)}"
        self._console.print(Text.assemble(("tba", "bold"), about), soft_wrap=True)
        if self._mode == "live":
            self._live = live_panel(self._panel(), self._console)
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def tell(self, line: str) -> None:
        if self._mode != "none":
            self._console.print(Text(line, style="dim"), soft_wrap=True)

    def conclude(self, finished: bool) -> None:
        """The end of the run: a table if it finished, and how to go on."""
        self._end()
        if self._mode == "none":
            return
        self._tick()
        summary = self._run / SUMMARY
        if summary.exists() and self._progress.step:
            self._console.print(
                end_table(json.loads(summary.read_text("utf-8")), self._run, self._config.task.headline)
            )
        if not finished:
            how = Text.assemble("Resume with: ", (f"tba train --resume {self._run}", "bold"))
            if not list_checkpoints(self._run):
                how = Text("There is no checkpoint yet: start again with --overwrite.")
            self._console.print(Text.assemble(f"Stopped at step {self._progress.step}. ", how), soft_wrap=True)

    def _end(self) -> None:
        """Stop following, and take the panel off the terminal."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._live is not None and self._mode != "none":
            self._live.update(Text(""))
            self._live.stop()
            self._live = None

    def _tick(self) -> None:
        for record in self._progress.update():
            line = told(record, self._config.task.headline)
            if line:
                self._console.print(line)
        if self._live is not None:
            self._live.update(self._panel())
        elif time.monotonic() - self._last_line > _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(_plain_line(self._progress) if self._progress.train else Text(self._starting()))
            for line in self._silent():
                self._console.print(line)
            for text in self._samples.due(self._progress.samples):
                self._console.print(Text(text), soft_wrap=True)

    def _panel(self) -> RenderableType:
        return panel(self._progress, self._starting() if not self._progress.train else "", self._silent())

    def _silent(self) -> list[Text]:
        """A line for each process that has given no sign of life for long."""
        activities = read_activities(self._run)
        silent = silences(activities)
        return [
            Text(f"{name}: no sign of life for {silent[name]:.0f} s ({doing_text(a)})", style="yellow")
            for a in activities
            if silent[name := a["process"]] > SILENT_SECONDS
        ]

    def _starting(self) -> str:
        """Before the first step: for how long, and what is going on. A first evaluation may take a while."""
        doing = [f"{a['process']}: {doing_text(a)}" for a in read_activities(self._run)]
        return f"{_clock(time.monotonic() - self._begun)} starting" + (f" · {', '.join(doing)}" if doing else "")

    def _follow(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._tick()
            except (OSError, SystemExit):  # rich's way to say that whoever read the output has gone
                self._mode = "none"
                return


def panel(progress: RunProgress, starting: str = "", silent: Sequence[Text] = ()) -> RenderableType:
    """Where a run stands: a bar, a line for the Trainer or on how it starts, one for each Searcher, warnings."""
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(justify="right")
    left = progress.seconds_left
    bar.add_row(
        ProgressBar(total=progress.num_steps, completed=progress.step),
        f"step {progress.step}/{progress.num_steps} · {_clock(progress.elapsed)}"
        + (f" · {_clock(left)} left" if left is not None else ""),
    )
    trainer = _trainer_row(progress) if progress.train else Text(starting, style="dim")
    alarms = [Text(f"{name}: {message}", style="red") for name, message in progress.alarms.items()]
    rows = [*_searcher_rows(progress), *sample_lines(progress.samples), *alarms, *silent]
    return Panel(Group(bar, trainer, *rows), title="training", expand=True)


def title(config: Config) -> str:
    how = "synchronous" if config.trainer.takes_turns else "asynchronous"
    return (
        f"{config.model.path} on {config.task.kind} · {how} · {config.searcher.num_searchers} "
        f"searcher{'s' if config.searcher.num_searchers > 1 else ''} + trainer ({config.run.launcher})"
    )


def _trainer_row(progress: RunProgress) -> RenderableType:
    train = progress.train
    held_out = f"{progress.evals[-1][1]:.3f} (step {progress.evals[-1][0]})" if progress.evals else "…"
    first = f" from {progress.evals[0][1]:.3f}" if len(progress.evals) > 1 else ""
    return Text.assemble(
        (f"{'trainer':<12}", "bold"),
        f"reward {_number(progress.reward, '.3f')} · "
        f"held-out {progress.judged_by.replace('_', ' ')} {held_out}{first} · "
        f"staleness {train['staleness/mean']:.1f} (max {train['staleness/max']}) · "
        f"{train['tokens'] / max(train['step_time'], 1e-9):,.0f} tok/s · buffer {train['buffer/size']:,}",
    )


def _searcher_rows(progress: RunProgress) -> list[RenderableType]:
    rows: list[RenderableType] = []
    for name, record in sorted(progress.searchers.items()):
        failed = f" · {record['failed']} rewards failed" if record["failed"] else ""
        kl = "–" if record["kl"] is None else f"{record['kl']:.2f}"
        rows.append(
            Text.assemble(
                (f"{name:<12}", "bold"),
                f"{record['tokens_per_second']:,.0f} tok/s · reward {record['reward']:.3f} · KL {kl} · "
                f"length {record['completions/mean_length']:.0f} · weights of step {record['version']}{failed}",
            )
        )
    return rows


def _plain_line(progress: RunProgress) -> str:
    speed = sum(record["tokens_per_second"] for record in progress.searchers.values())
    left = progress.seconds_left
    return (
        f"{_clock(progress.elapsed)} step {progress.step}/{progress.num_steps} "
        f"reward {_number(progress.reward, '.3f')} staleness {progress.train['staleness/mean']:.1f} "
        f"searchers {speed:,.0f} tok/s" + (f" {_clock(left)} left" if left is not None else "")
    )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def told(record: dict[str, Any], headline: Headline) -> Text | None:
    if record["kind"] == "eval":
        return Text(f"{_clock(record['time'])} step {record['step']:>4}  held-out {evaluation_text(record, headline)}")
    if record["event"] in _QUIET_EVENTS:
        return None
    rest = {k: v for k, v in record.items() if k not in ("kind", "step", "time", "event", "source")}
    message = record.get("message") or ", ".join(f"{k} {v}" for k, v in rest.items())
    if record["event"] == ALARM:
        return Text.assemble((f"alarm: {record['alarm']}", "red"), f". {message}")
    return Text.assemble((record["event"].replace("_", " "), "yellow"), f": {message}")


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
