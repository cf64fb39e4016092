"""The Trainer: learns without pause from the replay buffer. One loop; of Searchers it knows two channels only."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tba.activity import Activity
from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import Draw, draw
from tba.channels.base import GroupReceiver, Message, WeightPublisher
from tba.checkpoint import Checkpoint, save_checkpoint
from tba.config import BufferConfig, CheckpointConfig, TrainerConfig
from tba.epochs import Epochs
from tba.learn.arrivals import Arrivals
from tba.learn.base import Learner
from tba.metrics import Metrics, costs
from tba.seeds import Purpose, generator
from tba.step_metrics import step_metrics
from tba.summary import write_summary
from tba.types import Group, TbaError, Version


class Trainer:
    """Draws groups, steps, and every `sync_period` steps merges what Searchers collected and publishes its weights.

    After the first fill it waits for nobody, unless a staleness limit (synchronous mode is limit 0) leaves nothing
    fresh enough to draw.
    """

    def __init__(
        self,
        *,
        run: Path,
        learner: Learner,
        buffer: ReplayBuffer,
        log: RolloutLog,
        draws: DrawLog,
        epochs: Epochs,
        weights: WeightPublisher,
        groups: GroupReceiver,
        metrics: Metrics,
        activity: Activity,
        config: TrainerConfig,
        buffer_config: BufferConfig,
        checkpoint_config: CheckpointConfig,
        seed: int,
        stop_at_sync: bool = False,
        searcher_states: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        self.run_path = run
        self.learner = learner
        self.arrivals = Arrivals(learner, activity)
        self.buffer = buffer
        self.log = log
        self.draws = draws
        self.epochs = epochs
        self.weights = weights
        self.groups = groups
        self.metrics = metrics
        self.activity = activity
        self.config = config
        self.buffer_config = buffer_config
        self.checkpoint_config = checkpoint_config
        self.rng = generator(Purpose.DRAWS, seed)
        self.stop_at_sync = stop_at_sync
        self.searcher_states = searcher_states
        self.epoch = 0
        self.step = 0
        self.tokens_trained = 0
        self.stop_requested = False
        self._saved = self._published = -1
        self._num_merged = 0
        self._groups_by_version: Counter[Version] = Counter()

    @property
    def version(self) -> Version:
        """Of the weights as they are now."""
        return Version(self.epoch, self.step)

    def run(self) -> None:
        """Train to the last step, or until asked to stop. Waits for Searchers only to fill the buffer."""
        with self._stop_if_disk_is_full():
            self.publish()
            self.fill()
            while self.step < self.config.num_steps and not self._stopping():
                started = time.monotonic()
                drawn = self.draw()
                if not drawn.groups:
                    break  # asked to stop while it waited for them
                metrics = self.train_step(drawn.groups)
                self.record(drawn, metrics, time.monotonic() - started)
                if self.step % self.config.sync_period == 0:
                    self.sync()
            self.finish()

    def fill(self) -> None:
        """Collect groups before the first step, so that the first draws have something to choose from."""
        with self.activity("fill", f"waits for the first {self.config.first_fill} groups"):
            while self._num_merged < self.config.first_fill and not self.stop_requested:
                self.merge(wait=True)

    def draw(self) -> Draw:
        """Groups for one step: from the buffer as it is, or, under a staleness limit, once it is fresh enough.

        Empty only if it was asked to stop while it waited.
        """
        limit = self.config.staleness_limit
        if limit is not None:
            self._evict_stale(limit)
            with self.activity("wait", f"for groups that are at most {limit} steps old"):
                while self._num_fresh(limit) < self.config.num_groups and not self.stop_requested:
                    self.merge(wait=True)
                    self._evict_stale(limit)
                if self._num_fresh(limit) < self.config.num_groups:
                    return Draw([], [])
        with self.activity("draw"):
            return draw(
                self.buffer,
                num_groups=self.config.num_groups,
                group_size=self.config.group_size,
                recent_fraction=self.buffer_config.recent_fraction,
                uniform_fraction=self.buffer_config.uniform_fraction,
                inverse_temperature=self.buffer_config.inverse_temperature,
                rng=self.rng,
            )

    def train_step(self, groups: Sequence[Group]) -> dict[str, Any]:
        """One optimizer step on these groups; the numbers that describe it."""
        age_GK = np.array([[self.epochs.age(t.version, self.version) for t in g.trajectories] for g in groups])
        result = self.learner.step(groups, age_GK, self.step + 1)
        if not result.updated:
            self.metrics.write("event", self.step, {"event": "gradient_not_finite", "action": "update skipped"})
        self.step += 1
        self.activity.note(step=self.step)
        metrics = step_metrics(groups, age_GK, result.advantage_GK)
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
        """Merge what the Searchers have collected, then publish. Checkpoints fall on syncs: a resume starts at one."""
        self.merge()
        self.publish()
        self.save_if_due()

    def merge(self, wait: bool = False) -> None:
        """Groups that have arrived go to the log, then into the buffer; reports go to the metrics."""
        messages = self.groups.receive(wait)
        with self.activity("merge"):
            self._add_to_buffer(self.log.append(self.arrivals.groups(messages)))
            self._write_reports(messages)

    def publish(self) -> None:
        with self.activity("publish", f"version {self.version}"):
            self.weights.publish(self.version, self.learner.weights())
            self._published = self.step

    def record(self, drawn: Draw, metrics: Mapping[str, Any], seconds: float) -> None:
        """Write down what the step just made was trained on, and the numbers that describe it."""
        with self.activity("log"):
            self.draws.append(self.step, drawn.rows)
            held = {
                "buffer/size": len(self.buffer),
                "buffer/prompts": self.buffer.num_prompts,
                "buffer/duplicates": self.buffer.num_duplicates,
                "buffer/evicted": self.buffer.num_evicted,
            }
            self.metrics.write("train", self.step, {**metrics, **held, **costs(seconds, self.activity.seconds())})

    def save_if_due(self) -> None:
        """Write a checkpoint if `checkpoint.period` steps have been made since the last one that was due."""
        period = self.checkpoint_config.period
        if period and self.step // period > max(self._saved, 0) // period:
            self.save()

    def save(self) -> Checkpoint:
        """Write a checkpoint. The buffer is not in it: a position in the rollout log is."""
        with self.activity("checkpoint", f"step {self.step}"):
            self.log.compact()
            self.draws.flush()
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "tokens_trained": self.tokens_trained,
                "elapsed": self.metrics.elapsed,
                "log_position": self.log.position,
                "draw_state": self.buffer.draw_state(),
                "rng": self.rng.bit_generator.state,
                "searchers": self.searcher_states(),
            }
            checkpoint = save_checkpoint(
                self.run_path,
                self.step,
                save=self.learner.save,
                state=state,
                keep_last=self.checkpoint_config.keep_last,
            )
            self._saved = self.step
            return checkpoint

    def restore(self, checkpoint: Checkpoint, *, keep_tail: bool, new_epoch: bool) -> None:
        """Continue from a checkpoint; with `new_epoch`, in an epoch that forks there, because the weights will not be
        those that were made after it before.

        What was merged after it is in the log too. With `keep_tail` it enters the buffer: off-policy data stays
        sound. Without, it is set aside, because a deterministic launcher will make the very same groups again.
        """
        state = checkpoint.state()
        self.epoch = state.get("epoch", 0)  # tba 0.1 had no epochs
        self.step = self._saved = state["step"]
        self.tokens_trained = state["tokens_trained"]
        self.rng.bit_generator.state = state["rng"]
        self.learner.load(checkpoint.path)
        self.draws.go_back_to(self.step)
        if new_epoch:
            # After the draws went back: those that a replay reads are of the line of the newest epoch.
            self.epoch = self.epochs.branch(self.version).epoch
            self.epochs.write(self.run_path)
        if not keep_tail:
            self.log.set_aside_after(state["log_position"])
        for groups in self.log.read(stop=state["log_position"]):
            self._add_to_buffer(groups)
        limit = self.config.staleness_limit
        if limit is not None:
            self._evict_stale(limit)
        self.buffer.restore_draw_state(state["draw_state"])
        for groups in self.log.read(start=state["log_position"]):
            self._add_to_buffer(groups)
        resumed = {"event": "resumed", "checkpoint": checkpoint.path.name}
        self.metrics.write("event", self.step, resumed | ({"epoch": self.epoch} if self.epoch else {}))

    def finish(self) -> None:
        """Save, publish the last weights, let Searchers evaluate them, and collect what they still report."""
        if self._saved != self.step:
            self.save()
        if self._published != self.step:
            self.publish()
        finished = self.step >= self.config.num_steps
        self.weights.close(finished)
        if finished:
            with self.activity("finish", "waits for the last evaluation"):
                self._write_reports(self.groups.drain())
        self.draws.close()
        self.metrics.close()
        write_summary(self.run_path)

    @contextmanager
    def _stop_if_disk_is_full(self) -> Iterator[None]:
        """What is written is whole, so there is nothing to save: stop the Searchers and say what to do."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            self.weights.close(finished=False)
            resume = f"tba train --resume {self.run_path}"
            raise TbaError(f"no space left at step {self.step}: free some, then {resume}") from error

    def _stopping(self) -> bool:
        return self.stop_requested and (not self.stop_at_sync or self.step % self.config.sync_period == 0)

    def _num_fresh(self, limit: int) -> int:
        for version in [v for v in self._groups_by_version if self.epochs.age(v, self.version) > limit]:
            del self._groups_by_version[version]
        return self._groups_by_version.total()

    def _evict_stale(self, limit: int) -> None:
        self.buffer.evict_outside(self.epochs.fresh(self.version, limit))

    def _add_to_buffer(self, groups: Sequence[Group]) -> None:
        self.buffer.extend(groups)
        self._num_merged += len(groups)
        for group in groups:
            self._groups_by_version[min(t.version for t in group.trajectories)] += 1

    def _write_reports(self, messages: Sequence[Message]) -> None:
        for report in self.arrivals.reports(messages):
            step = report.values["version"] if report.kind == "eval" else self.step
            self.metrics.write(report.kind, step, {"source": report.source, **report.values})
