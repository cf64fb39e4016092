"""`tba sweep SPACE.toml`: every arm with the first seed, then with the next one, without the arms that are hopeless.

The folders of the runs are the truth. What has finished is recognised there, so a sweep that was killed goes on where
it was, and one whose space has grown runs what is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tba.launch.preflight import check
from tba.runs.activity import read_activities
from tba.runs.bars import Work
from tba.runs.folder import locked
from tba.runs.phases import doing_text
from tba.runs.progress import RunProgress
from tba.runs.terminal import terminal
from tba.sweep.arms import shown
from tba.sweep.children import Ended, check_same_settings, run_all
from tba.sweep.elimination import Stopped, hopeless
from tba.sweep.record import Record, Result, failed, is_finished, result_of
from tba.sweep.report import report
from tba.sweep.settings import PlannedRun, Sweep, read_sweep
from tba.types import TbaError


def run_sweep(path: Path, *, dry_run: bool = False) -> int:
    """Run what is not finished yet, and report. Exit code 0, or 1 if a run failed."""
    sweep = read_sweep(path)
    for run in sweep.runs.values():
        check_same_settings(run)
    console = terminal()
    for note in sweep.notes:
        console.print(note, markup=False, soft_wrap=True)
    if dry_run:
        console.print(plan_table(sweep))
        return 0
    for arm in sweep.arms:
        check(sweep.runs[arm.name, sweep.settings.seeds[0]].config)
    try:
        sweep.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TbaError(f"cannot make {sweep.folder}: {error.strerror}; choose another sweep.root") from None
    with locked(sweep.folder):
        with Work(console) as work:
            search = Search(sweep, work)
            search.run()
        report(sweep, search.results, search.stopped, path, console)
    return 1 if any(r.value is None for r in search.results) else 0


class Search:
    """The rounds of a sweep, one for each seed."""

    def __init__(self, sweep: Sweep, work: Work) -> None:
        self._sweep = sweep
        self._work = work
        self._followed: dict[str, RunProgress] = {}
        self._record = Record(sweep.folder)
        self._num_ended = 0
        """Of the round."""
        self._results: dict[tuple[str, int], Result] = {}
        self.stopped: dict[str, Stopped] = {}

    @property
    def results(self) -> list[Result]:
        """In the order of arms and seeds, however they ended."""
        return [self._results[key] for key in self._sweep.runs if key in self._results]

    def run(self) -> None:
        for number, seed in enumerate(self._sweep.settings.seeds, start=1):
            self._round([arm.name for arm in self._sweep.arms if arm.name not in self.stopped], seed)
            alive = [arm.name for arm in self._sweep.arms if arm.name not in self.stopped]
            so_far = self._sweep.settings.seeds[:number]
            found = hopeless({name: [self._results[name, s] for s in so_far] for name in alive}, self._sweep.settings)
            self.stopped |= found
            if number < len(self._sweep.settings.seeds):
                for name, why in found.items():
                    self._tell(f"stopped {name}: {why.reason}")

    def _round(self, arms: Sequence[str], seed: int) -> None:
        runs = [self._sweep.runs[name, seed] for name in arms]
        finished = [run for run in runs if is_finished(run)]
        for run in finished:
            self._keep(result_of(run, self._sweep.settings), run, "found")
        self._work.begin(f"seed {seed}", len(runs), "runs", silently=True)
        self._num_ended = len(finished)
        waiting = [run for run in runs if run not in finished]
        run_all(waiting, self._sweep.settings.parallel, self._ended, self._going_on)

    def _going_on(self, runs: Sequence[PlannedRun]) -> None:
        self._work.reached(self._num_ended, ", ".join(map(self._where, runs)))

    def _where(self, run: PlannedRun) -> str:
        """The step that a run is at, or what it does before the first."""
        if run.name not in self._followed:
            steps, headline = run.config.trainer.num_steps, run.config.task.headline
            self._followed[run.name] = RunProgress(run.folder, steps, headline, from_start=True)
        progress = self._followed[run.name]
        progress.update()
        if progress.step:
            return f"{run.name} at step {progress.step}/{progress.num_steps}"
        doing = ", ".join(dict.fromkeys(map(doing_text, read_activities(run.folder))))
        return f"{run.name} {doing or 'starting'}"

    def _ended(self, ended: Ended) -> None:
        self._num_ended += 1
        if ended.code == 130:
            raise KeyboardInterrupt  # somebody has stopped the run itself, in order
        if ended.code == 0 and is_finished(ended.run):
            self._keep(result_of(ended.run, self._sweep.settings), ended.run, "done")
        else:
            failure = ended.failure or "the run ended before its last step"
            self._keep(failed(ended.run, self._sweep.settings.metric, ended.seconds, failure), ended.run, "failed")

    def _keep(self, result: Result, run: PlannedRun, how: str) -> None:
        self._results[result.arm, result.seed] = result
        self._record.append(result)
        came_to = result.failure if result.value is None else f"{result.metric} {result.value:.4f}"
        count = f"{len(self._results)}/{len(self._sweep.runs)}"
        self._tell(f"{count} {how} {run.name}: {came_to}, {result.seconds:.0f} s")

    def _tell(self, line: str) -> None:
        self._work.say(line)


def plan_table(sweep: Sweep) -> Table:
    """The arms and what is varied in them, and how many runs that makes."""
    names = list(sweep.arms[0].settings)
    table = Table("arm", *names, title=f"{len(sweep.runs)} runs in {sweep.folder}", title_justify="left")
    for number, arm in enumerate(sweep.arms):
        table.add_row(str(number), *(Text(shown(arm.settings[name])) for name in names))
    seeds = ", ".join(map(str, sweep.settings.seeds))
    table.caption = f"{len(sweep.arms)} arms with the seeds {seeds}"
    return table
