"""Progress on the terminal: a live panel, or plain lines where there is no terminal. At the end, a summary."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from tba.config.settings import Config
from tba.learn.checkpoint import Checkpoint, list_checkpoints
from tba.runs.activity import SILENT_SECONDS, read_activities, silences
from tba.runs.alarms import ALARM
from tba.runs.end_table import end_lines, end_table
from tba.runs.ledger import PROCESS_ENDED
from tba.runs.notebook import NotebookPanel, live_panel
from tba.runs.panel import panel, waiting_panel
from tba.runs.phases import doing_text
from tba.runs.plain_lines import PlainLines
from tba.runs.progress import RunProgress, evaluation_text
from tba.runs.summary import SUMMARY
from tba.runs.terminal import can_redraw, no_mark_of_ctrl_c, terminal
from tba.runs.wording import clock, counted
from tba.samples.line import PlainSamples, sample_lines
from tba.tasks import Headline

_TICK_SECONDS = 0.25
_QUIET_EVENTS = {"reward_failed", PROCESS_ENDED}  # counted in the panel or the summary, listed in metrics.jsonl


class Display:
    """Shows how a run comes about and goes on, in a thread, by what its processes write. It begins before there is a
    run, and has one clock throughout. Should the terminal fail, the run goes on without."""

    def __init__(self, config: Config, run: Path | None = None, checkpoint: Checkpoint | None = None) -> None:
        """`checkpoint`: where the run goes on from."""
        self._console = terminal()
        mode = config.run.display
        self._mode = ("live" if can_redraw(self._console) else "plain") if mode == "auto" else mode
        self._config = config
        self._run: Path | None = None
        self._progress: RunProgress | None = None
        self._what = ""
        """What goes on before there is a run."""
        self._live: Live | NotebookPanel | None = None
        self._terminal = ExitStack()
        self.started = time.time()
        """When the display was made, by the clock."""
        self._checkpoint = checkpoint
        self._begun = time.monotonic()
        self._lines = PlainLines()
        self._samples = PlainSamples()
        self._is_stopping = self._has_told_of_stopping = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, name="display", daemon=True)
        self._first_run = run

    def __enter__(self) -> Display:
        if self._first_run is not None:
            self.follow(self._first_run)
        if self._mode == "live":
            self._terminal.enter_context(no_mark_of_ctrl_c())
            self._live = live_panel(self._panel(), self._console)
            self._live.start()
        if self._mode != "none":
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
        if kind is KeyboardInterrupt and self._run is None:
            self.tell("Stopped before the run began: nothing was written.")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Shows what this process does before there is a run."""
        self._what = what
        try:
            yield
        finally:
            self._what = ""

    def follow(self, run: Path) -> None:
        """From now on this run is shown."""
        step = 0
        if self._checkpoint is not None:
            step = self._checkpoint.step
            self._begun -= self._checkpoint.state()["elapsed"]
        self._progress = RunProgress(run, self._config.trainer.num_steps, self._config.task.headline, step=step)
        self._run = run
        if self._mode != "none":
            about = f" · {run} · {title(self._config)}"
            self._console.print(Text.assemble(("tba", "bold"), about), soft_wrap=True)

    def tell(self, line: str) -> None:
        if self._mode != "none":
            self._console.print(Text(line, style="dim"), soft_wrap=True)

    def stopping(self) -> None:
        """Say so, within a moment. Called by signal handlers: it waits for nothing."""
        self._is_stopping = True

    def conclude(self, finished: bool) -> None:
        """The end of the run: a table if it finished, and how to go on."""
        self._end()
        if self._mode == "none" or self._run is None or self._progress is None:
            return
        self._tick()
        summary = self._run / SUMMARY
        if summary.exists() and self._progress.train:
            headline = self._config.task.headline
            self._console.print(end_table(json.loads(summary.read_text("utf-8")), headline))
            for line in end_lines(self._run, headline):
                self._console.print(line, soft_wrap=True)
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
        self._tell_of_stopping()
        if self._live is not None and self._mode != "none":
            self._live.update(Text(""))
            self._live.stop()
            self._live = None
        self._terminal.close()

    @property
    def _seconds(self) -> float:
        """What the clock shows: the time since the run was asked for, and that of the run before it was resumed."""
        return time.monotonic() - self._begun

    def _tick(self) -> None:
        self._tell_of_stopping()
        for record in self._progress.update() if self._progress is not None else ():
            line = told(record, self._config.task.headline)
            if line:
                self._console.print(line, soft_wrap=True)
        if self._live is not None:
            self._live.update(self._panel())
        elif self._lines.due(self._seconds):
            self._print_lines()

    def _print_lines(self) -> None:
        """Where the run stands, who is silent, and now and then a sample: for logs."""
        activities = self._activities()
        line = Text(self._lines.line(self._seconds, self._progress, self._what, activities))
        samples = [] if self._progress is None else self._samples.due(self._progress.samples)
        for told_of in [line, *self._silent(activities), *map(Text, samples)]:
            if told_of:
                self._console.print(told_of, soft_wrap=True)

    def _tell_of_stopping(self) -> None:
        if self._is_stopping and not self._has_told_of_stopping and self._mode != "none":
            self._has_told_of_stopping = True
            saves = self._progress is not None and bool(self._progress.train)
            self._console.print("stopping…" + (" (Ctrl-C again: at once, without a checkpoint)" if saves else ""))

    def _panel(self) -> RenderableType:
        if self._progress is None:
            return waiting_panel(self._what, self._seconds, is_stopping=self._is_stopping)
        activities = self._activities()
        return panel(
            self._progress,
            activities,
            self._silent(activities),
            seconds=self._seconds,
            is_stopping=self._is_stopping,
            below=sample_lines(self._progress.samples),
        )

    def _activities(self) -> list[dict[str, Any]]:
        return [] if self._run is None else read_activities(self._run)

    def _silent(self, activities: Sequence[Mapping[str, Any]]) -> list[Text]:
        """A line for each process that has given no sign of life for long."""
        silent = silences(activities)
        return [
            Text(f"{name}: no sign of life for {silent[name]:.0f} s ({doing_text(a)})", style="magenta")
            for a in activities
            if silent[name := a["process"]] > SILENT_SECONDS
        ]

    def _keep_showing(self) -> None:
        while not self._stop.wait(_TICK_SECONDS):
            try:
                self._tick()
            except (OSError, SystemExit):  # rich's way to say that whoever read the output has gone
                self._mode = "none"
                return


def title(config: Config) -> str:
    how = "synchronous" if config.trainer.takes_turns else "asynchronous"
    return (
        f"{config.model.path} on {config.task.kind} · {how} · "
        f"{counted(config.searcher.num_searchers, 'Searcher')} + Trainer ({config.run.launcher})"
    )


def told(record: dict[str, Any], headline: Headline) -> Text | None:
    if record["kind"] == "eval":
        return Text(f"{clock(record['time'])} step {record['step']:>4}  held-out {evaluation_text(record, headline)}")
    if record["event"] in _QUIET_EVENTS:
        return None
    rest = {k: v for k, v in record.items() if k not in ("kind", "step", "time", "event", "source")}
    message = record.get("message") or ", ".join(f"{k} {v}" for k, v in rest.items())
    if record["event"] == ALARM:
        return Text.assemble((f"alarm: {record['alarm']}", "red"), f". {message}")
    return Text.assemble((record["event"].replace("_", " "), "magenta"), f": {message}")
