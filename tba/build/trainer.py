"""The Trainer: its Learner, what it draws from and what it writes."""

from __future__ import annotations

import time
from pathlib import Path

from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.buffer.spreads import SpreadTable
from tba.build.learner import build_learner
from tba.channels.base import GroupReceiver, WeightPublisher
from tba.config.settings import Config
from tba.learn.buffer_supply import BufferSupply
from tba.learn.checkpoint import Checkpoint
from tba.learn.epochs import Epochs
from tba.learn.exact_staleness import ExactStaleness
from tba.learn.step_queue import StepQueue
from tba.learn.supply import Supply
from tba.learn.trainer import Trainer
from tba.runs.activity import STARTING, Activity
from tba.runs.alarm_measures import Known
from tba.runs.alarms import Alarms
from tba.runs.metrics import Metrics, Sink, TensorBoardSink, TrackioSink, WandbSink
from tba.runs.patience import Patience
from tba.samples.choose import SampleChooser
from tba.tasks.row_texts import ROWS, StoredRows

ROLLOUTS = "rollouts"


def build_trainer(
    config: Config,
    run: Path,
    *,
    weights: WeightPublisher,
    groups: GroupReceiver,
    checkpoint: Checkpoint | None,
    started: float,
    activity: Activity,
    repeatable: bool,
) -> Trainer:
    """A Trainer, at its first step or where the checkpoint left it. `started`: the launcher's start, by the clock.

    `repeatable`: what follows a checkpoint is made again as it was, weights and groups, by a run that starts from it.
    """
    epochs = Epochs.read(run)
    staleness = build_staleness(config, checkpoint, repeatable=repeatable)
    row_of = StoredRows(run / ROWS)
    with activity(STARTING, "loading the model"), activity.quiet():
        learner = build_learner(config, activity)
    trainer = Trainer(
        run=run,
        learner=learner,
        supply=_supply(config, epochs, staleness),
        log=RolloutLog(run / ROLLOUTS, row_of),
        draws=DrawLog(run),
        epochs=epochs,
        weights=weights,
        groups=groups,
        metrics=_metrics(config, run, checkpoint, started, _known(config, takes_turns=repeatable)),
        activity=activity,
        config=config.trainer,
        checkpoint_config=config.checkpoint,
        seed=config.run.seed,
        spreads=SpreadTable() if config.searcher.prompts == "solve_rate" else None,
        stop_at_sync=repeatable,
        end_seconds=config.run.end_seconds,
        success_reward=config.evaluation.success_reward,
        patience=Patience(config.evaluation.patience, config.task.headline.metric_of)
        if config.evaluation.patience
        else None,
        samples=SampleChooser(config.metrics.samples, config.trainer.num_steps, row_of),
    )
    if checkpoint is not None:
        # Data of the time that was lost counts as off-policy, unless a limit asks for data of this policy.
        keep_tail = not repeatable and config.trainer.staleness_limit is None
        trainer.restore(checkpoint, keep_tail=keep_tail, new_epoch=not repeatable)
    return trainer


def _supply(config: Config, epochs: Epochs, staleness: ExactStaleness | None) -> Supply:
    if staleness is not None:
        return StepQueue(staleness, config.trainer.group_size)
    is_random = config.reward.is_random or (not config.reward.is_named and config.task.reward_is_random)
    return BufferSupply(config.trainer, config.buffer, epochs, reward_is_random=is_random)


def build_staleness(config: Config, checkpoint: Checkpoint | None, *, repeatable: bool) -> ExactStaleness | None:
    """Which version makes the groups of which step, if the settings ask for data of one age."""
    settings = config.trainer
    if settings.staleness is None:
        return None
    schedule = ExactStaleness(settings.staleness, settings.num_groups, settings.num_steps)
    return schedule if checkpoint is None else schedule.resumed_from(checkpoint, repeatable=repeatable)


def _known(config: Config, *, takes_turns: bool) -> Known:
    """What alarms must know of the run."""
    return Known(
        num_responses=config.searcher.num_responses,
        is_asynchronous=not takes_turns and not config.trainer.takes_turns,
        precisions=(
            *(config.engine.settled_precision, config.engine.dtype),
            "bfloat16" if config.model.in_bfloat16 else "float32",
        ),
        explores_hotter=config.searcher.temperature_fraction > 0 or config.engine.leaves_tokens_out,
        is_graded=config.task.headline.metric == "accuracy",
    )


def _metrics(config: Config, run: Path, checkpoint: Checkpoint | None, started: float, known: Known) -> Metrics:
    settings = config.model_dump(mode="json")
    sinks: list[Sink] = []
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSink(run, settings))
    if config.metrics.wandb:
        sinks.append(WandbSink(run, settings))
    if config.metrics.trackio:
        sinks.append(TrackioSink(run, settings))
    before = checkpoint.state()["elapsed"] if checkpoint else 0.0
    return Metrics(run, elapsed=before + time.time() - started, sinks=sinks, alarms=Alarms(known))
