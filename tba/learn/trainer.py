"""The Trainer: learns without pause from the replay buffer. One loop; of Searchers it knows two channels only."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tba.buffer.draws import DrawLog, recorded_draws
from tba.buffer.log import RolloutLog
from tba.buffer.sampling import Draw
from tba.buffer.spreads import SpreadTable
from tba.channels.base import GroupReceiver, Message, WeightPublisher
from tba.config.training import CheckpointConfig, TrainerConfig
from tba.learn.arrivals import Arrivals
from tba.learn.base import Learner
from tba.learn.checkpoint import Checkpoint, save_checkpoint
from tba.learn.epochs import Epochs
from tba.learn.step_metrics import step_metrics
from tba.learn.supply import Supply
from tba.runs.activity import ENDING, TRAINER, Activity, read_activities
from tba.runs.callbacks import STOPPED_EARLY
from tba.runs.ledger import PROCESS_ENDED
from tba.runs.metrics import Metrics, costs, read_metrics
from tba.runs.overlap import Overlap
from tba.runs.patience import Patience
from tba.runs.phases import doing_text
from tba.runs.summary import write_summary
from tba.runs.time_spent import time_record
from tba.runs.wording import counted
from tba.samples.choose import SampleChooser
from tba.seeds import Purpose, generator
from tba.types import Group, Report, TbaError, Unused, Version

NO_GROUPS_SYNCS, NO_GROUPS_STEPS = 10, 50
"""So many syncs, and at least so many steps, without a new group are told: data grow older by more than Searchers that
evaluate, or one that is started again, usually take."""


class Trainer:
    """Draws groups, steps, and every `sync_period` steps merges what Searchers collected and publishes its weights.

    After the first fill it waits for nobody, unless a staleness limit (synchronous mode is limit 0) leaves nothing
    fresh enough to draw. `run` is all of it where Searchers work meanwhile. A launcher that has them take turns calls
    its parts: `begin`, `advance` while not `done`, `conclude`, and `finish` once the Searchers have finished.
    """

    def __init__(
        self,
        *,
        run: Path,
        learner: Learner,
        supply: Supply,
        log: RolloutLog,
        draws: DrawLog,
        epochs: Epochs,
        weights: WeightPublisher,
        groups: GroupReceiver,
        metrics: Metrics,
        activity: Activity,
        config: TrainerConfig,
        checkpoint_config: CheckpointConfig,
        seed: int,
        spreads: SpreadTable | None = None,
        stop_at_sync: bool = False,
        end_seconds: float = math.inf,
        success_reward: float = 0.5,
        patience: Patience | None = None,
        samples: SampleChooser | None = None,
    ) -> None:
        """`spreads`: what Searchers choose prompts by, if they do. `stop_at_sync`: a stop that is asked for waits for
        the next sync. `end_seconds`: for how long the last reports of Searchers are waited for. A response is right if
        its reward is above `success_reward`. `patience` judges evaluations, and may end the run early.
        `samples` chooses responses to be shown."""
        self.run_path = run
        self.learner = learner
        self.arrivals = Arrivals(learner, activity)
        self.supply = supply
        self.log = log
        self.draws = draws
        self.epochs = epochs
        self.weights = weights
        self.groups = groups
        self.metrics = metrics
        self.activity = activity
        self.config = config
        self.checkpoint_config = checkpoint_config
        self.rng = generator(Purpose.DRAWS, seed)
        self.spreads = spreads
        self.stop_at_sync = stop_at_sync
        self.end_seconds = end_seconds
        self.success_reward = success_reward
        self.patience = patience
        self.samples = samples
        self.overlap = Overlap(run)
        self.epoch = 0
        self.step = 0
        self.tokens_trained = 0
        self.stop_requested = False
        self.lacks_groups = False
        """Whether `advance` ended because it had too little to draw from."""
        self._saved = self._published = -1
        self._last_new_group = 0
        self._told_of_no_groups = False

    @property
    def version(self) -> Version:
        """Of the weights as they are now."""
        return Version(self.epoch, self.step)

    @property
    def finished(self) -> bool:
        """Whether the last step was made."""
        return self.step >= self.config.num_steps

    @property
    def done(self) -> bool:
        """Whether the last step was made, or it was asked to stop and may."""
        return self._must_end() or (self.stop_requested and self.lacks_groups)

    def run(self) -> None:
        """Train to the last step, or until asked to stop. Waits for Searchers only where it lacks groups."""
        with self.stopped_if_disk_is_full():
            self.begin()
            while not self.done:
                self.advance()
                self.save_if_due()
                self.wait_for_groups()
            self.conclude()
            self.finish()

    def begin(self) -> None:
        """Publish the weights to start with; Searchers wait for them."""
        self.publish()

    def advance(self) -> bool:
        """Make steps up to the next sync, and that sync; fewer steps if it lacks groups, or must end before.

        True if it has merged all that has arrived.
        """
        while not self._must_end():
            enough = self.supply.has_enough(self.version)
            if not enough:
                self.merge()
                enough = self.supply.has_enough(self.version)
            self.lacks_groups = not enough
            if self.lacks_groups:
                return True
            self.make_step()
            if self.config.syncs_after(self.step):
                self.sync()
                return True
        return False

    def wait_for_groups(self) -> None:
        """If it lacks groups: until there is enough to draw from, or until asked to stop."""
        if not self.lacks_groups:
            return
        lacks = self.supply.lacks()
        with self.activity(lacks.kind, lacks.detail, total=lacks.total, unit=lacks.unit):
            self.activity.reached(lacks.done)
            while self.lacks_groups and not self.stop_requested:
                self.merge(wait=True)
                self.lacks_groups = not self.supply.has_enough(self.version)
                if self.lacks_groups:
                    self.activity.reached(self.supply.lacks().done)

    def make_step(self) -> None:
        started = time.monotonic()
        with self.overlap.training():
            drawn = self.draw()
            metrics = self.train_step(drawn.groups)
        self.record(drawn, metrics, time.monotonic() - started)

    def draw(self) -> Draw:
        """Groups for one step, from what is there."""
        with self.activity("draw"):
            return self.supply.draw(self.version, self.rng)

    def train_step(self, groups: Sequence[Group]) -> dict[str, Any]:
        """One optimizer step on these groups; the numbers that describe it."""
        age_GK = np.array([[self.epochs.age(t.version, self.version) for t in g.trajectories] for g in groups])
        result = self.learner.step(groups, age_GK, self.step + 1)
        if not result.updated:
            self.metrics.write("event", self.step, {"event": "gradient_not_finite", "action": "update skipped"})
        self.step += 1
        self.activity.note(step=self.step)
        metrics = step_metrics(groups, age_GK, result, self.success_reward)
        self.tokens_trained += metrics["tokens"]
        return {
            "loss": result.loss,
            **metrics,
            **result.metrics,
            "grad_norm": result.grad_norm,
            "learning_rate": result.learning_rate,
            "num_tokens": self.tokens_trained,
        }

    def sync(self) -> None:
        """Merge what the Searchers have collected, then publish."""
        self.merge()
        self._wait_until_explored()
        if self.spreads is not None:
            self.spreads.fold()
        self.publish()
        self._tell_if_no_groups_come()

    def merge(self, wait: bool = False) -> None:
        """Groups that have arrived go to the log, then into the buffer; reports go to the metrics."""
        messages = self.groups.receive(wait)
        with self.activity("merge"):
            groups = self.log.append(self.arrivals.groups(messages), self.version)
            self.supply.extend(groups)
            for event in self.supply.new_events():
                self.metrics.write("event", self.step, event)
            self._note_spreads([*groups, *(m for m in messages if isinstance(m, Unused))])
            self._write_reports(messages)
            self._write_samples(groups)
            if groups:
                self._last_new_group, self._told_of_no_groups = self.step, False

    def publish(self) -> None:
        with self.activity("publish", f"version {self.version}"):
            note = b"" if self.spreads is None else self.spreads.spreads().to_bytes()
            self.weights.publish(self.version, self.learner.weights(), note)
            self._published = self.step

    def record(self, drawn: Draw, metrics: Mapping[str, Any], seconds: float) -> None:
        """Write down what the step just made was trained on, and the numbers that describe it."""
        with self.activity("log"):
            self.draws.append(self.step, drawn.rows)
            self.supply.ledger.count_draws(drawn.rows)
            spent = {**self.overlap.values(), **costs(seconds, self.activity)}
            self.metrics.write("train", self.step, {**metrics, **self.supply.values(), **spent})

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether `checkpoint.period` steps have been made since the last one that was due."""
        period = self.checkpoint_config.period
        return period > 0 and self.step // period > max(self._saved, 0) // period

    def save_if_due(self, searchers: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a checkpoint at a sync if one is due, as `save` does: a resume starts with a publication."""
        if self._published == self.step and self.is_checkpoint_due:
            self.save(searchers)

    def save(self, searchers: Sequence[Mapping[str, Any]] = ()) -> Checkpoint:
        """Write a checkpoint. The buffer is not in it: a position in the rollout log is.

        `searchers` are their states when all that they had made was merged, for a launcher that repeats them.
        """
        with self.activity("checkpoint", f"step {self.step}"), self.activity.quiet():
            self.log.compact()
            self.draws.flush()
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "tokens_trained": self.tokens_trained,
                "elapsed": self.metrics.elapsed,
                "log_position": self.log.position,
                "rng": self.rng.bit_generator.state,
                "searchers": list(searchers),
                "spreads": None if self.spreads is None else self.spreads.state(),
                **self.supply.state(),
            }
            checkpoint = save_checkpoint(
                self.run_path,
                self.step,
                save=self.learner.save,
                state=state,
                keep_last=self.checkpoint_config.keep_last,
                keep_interval=self.checkpoint_config.keep_interval,
            )
            self._saved = self.step
            return checkpoint

    def restore(self, checkpoint: Checkpoint, *, keep_tail: bool, new_epoch: bool) -> None:
        """Continue from a checkpoint; with `new_epoch`, in an epoch that forks there, because the weights will not be
        those that were made after it before.

        What was merged after it is in the log too. With `keep_tail` it enters the buffer: off-policy data stays
        sound. Without, it is set aside, because a deterministic launcher will make the very same groups again.
        """
        with self.activity("restore", checkpoint.path.name), self.activity.quiet():
            self._restore(checkpoint, keep_tail=keep_tail, new_epoch=new_epoch)

    def _restore(self, checkpoint: Checkpoint, *, keep_tail: bool, new_epoch: bool) -> None:
        state = checkpoint.state()
        self.epoch = state.get("epoch", 0)  # tba 0.1 had no epochs
        self.step = self._saved = state["step"]
        self.tokens_trained = state["tokens_trained"]
        self.rng.bit_generator.state = state["rng"]
        self.learner.load(checkpoint.path)
        self.draws.go_back_to(self.step)
        for rows in recorded_draws(self.run_path):
            self.supply.ledger.count_draws(rows)
        if new_epoch:
            # After the draws went back: those that a replay reads are of the line of the newest epoch.
            self.epoch = self.epochs.branch(self.version).epoch
            self.epochs.write(self.run_path)
        if not keep_tail:
            self.log.set_aside_after(state["log_position"])
        self.supply.refill(self.log, state, self.version)
        self._restore_spreads(state)
        if self.samples is not None:
            self.samples.resume(self.step)
        self._last_new_group = self.step
        resumed = {"event": "resumed", "checkpoint": checkpoint.path.name}
        self.metrics.write("event", self.step, resumed | ({"epoch": self.epoch} if self.epoch else {}))
        if self.patience is not None:
            self.patience.take_all(read_metrics(self.run_path))

    def conclude(self, searchers: Sequence[Mapping[str, Any]] = ()) -> None:
        """Save, as `save` does, publish the last weights, and tell the Searchers that no others follow."""
        if self._saved != self.step:
            self.save(searchers)
        if self._published != self.step:
            self.publish()
        self.weights.close(self.finished)

    def finish(self) -> None:
        """Collect what Searchers still hand up while they evaluate the last weights, for a bounded time, and end."""
        if self.finished:
            deadline = time.monotonic() + self.end_seconds
            with self.activity(ENDING):
                while self.groups.is_open and not self.stop_requested and time.monotonic() < deadline:
                    self.merge(wait=True)
                self.merge()
        else:  # of what comes after the checkpoint nothing is merged, but how Searchers ended is told
            self._write_reports([m for m in self.groups.receive() if isinstance(m, Report) and m.is_last])
        ended = {"event": PROCESS_ENDED, "source": TRAINER, **self.supply.ledger_values()}
        self.metrics.write("event", self.step, {**ended, **time_record(self.activity)})
        self.draws.close()
        self.overlap.close()
        self.metrics.close()
        write_summary(self.run_path)

    @contextmanager
    def stopped_if_disk_is_full(self) -> Iterator[None]:
        """What is written is whole, so there is nothing to save: stop the Searchers and say what to do."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self.weights.close(finished=False)
            resume = f"tba train --resume {self.run_path}"
            raise TbaError(f"no space left at step {self.step}: free some, then {resume}") from error

    def _must_end(self) -> bool:
        stopping = self.stop_requested and (not self.stop_at_sync or self.config.syncs_after(self.step))
        return self.finished or stopping

    def _wait_until_explored(self) -> None:
        """Until the Searchers may go on to newer weights than those that are published."""
        published = Version(self.epoch, self._published)
        if self.supply.is_explored(published):
            return
        with self.activity("wait", f"for the groups of version {published}"):
            while not self.supply.is_explored(published) and not self.stop_requested:
                self.merge(wait=True)

    def _note_spreads(self, arrived: Sequence[Group | Message]) -> None:
        if self.spreads is not None:
            for one in arrived:
                if isinstance(one, (Group, Unused)):
                    self.spreads.add(one)

    def _restore_spreads(self, state: Mapping[str, Any]) -> None:
        """As the checkpoint has them; by the log, if its run did not choose prompts yet."""
        if self.spreads is None:
            return
        position = state["log_position"]
        if state.get("spreads") is not None:
            self.spreads.restore(state["spreads"])
        else:
            for groups in self.log.read(stop=position):
                self._note_spreads(groups)
            self.spreads.fold()
        for groups in self.log.read(start=position):
            self._note_spreads(groups)

    def _tell_if_no_groups_come(self) -> None:
        """Once, until one comes. The Trainer goes on with what it has, which only grows older."""
        steps = self.step - self._last_new_group
        if self._told_of_no_groups or steps < max(NO_GROUPS_SYNCS * self.config.sync_period, NO_GROUPS_STEPS):
            return
        self._told_of_no_groups = True
        doing = [f"{a['process']}: {doing_text(a)}" for a in read_activities(self.run_path) if a["process"] != TRAINER]
        message = f"no Searcher has handed up a group for {counted(steps, 'step')}" + (
            f"; {', '.join(doing)}" if doing else ""
        )
        message += ". See docs/tuning.md#no-new-groups"
        self.metrics.write("event", self.step, {"event": "no_new_groups", "message": message})

    def _write_reports(self, messages: Sequence[Message]) -> None:
        for report in self.arrivals.reports(messages):
            step = report.values["version"] if report.kind == "eval" else self.step
            self.metrics.write(report.kind, step, {"source": report.source, **report.values})
            if report.kind == "eval":
                self._judge(report.values)

    def _write_samples(self, groups: Sequence[Group]) -> None:
        samples = [] if self.samples is None else self.samples.choose(groups, self.step)
        if samples:
            self.metrics.write_samples(self.step, samples)

    def _judge(self, evaluation: Mapping[str, Any]) -> None:
        """End the run early if evaluations have brought nothing better for long."""
        if self.patience is None or self.stop_requested or self.finished:
            return
        self.patience.take(evaluation)
        if self.patience.has_ended:
            self.stop_requested = True
            self.metrics.write("event", self.step, {"event": STOPPED_EARLY, "message": self.patience.message})
