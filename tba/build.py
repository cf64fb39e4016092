"""Settings to objects: the only file that sees both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from tba.buffer.draws import DrawLog
from tba.buffer.log import RolloutLog
from tba.buffer.spreads import SpreadTable
from tba.channels.base import GroupReceiver, GroupSender, WeightPublisher, WeightSubscriber
from tba.config.settings import Config
from tba.engines.packed_linear import PackedLayers, Precision, in_full_precision
from tba.engines.transformers import TransformersEngine
from tba.evaluations.base import Evaluator, Parts
from tba.evaluations.embeddings import Embedder
from tba.learn.buffer_supply import BufferSupply
from tba.learn.checkpoint import Checkpoint
from tba.learn.epochs import Epochs
from tba.learn.exact_staleness import ExactStaleness
from tba.learn.learner import LocalLearner
from tba.learn.moving_reference import MovingReference
from tba.learn.optimization import Optimization
from tba.learn.step_queue import StepQueue
from tba.learn.supply import Supply
from tba.learn.trainer import Trainer
from tba.policy.devices import device_of, moved, num_gpus
from tba.policy.lora import add_adapters, has_adapters, without_adapters
from tba.policy.placement import AUTO, beside, definite, searcher_device
from tba.policy.policy import Policy, Reference, load_model, load_tokenizer
from tba.rewards.functions import RewardFactory, RewardSpec
from tba.rewards.reward_model import reward_model
from tba.rewards.scorer import Scorer, Waiting
from tba.runs.activity import Activity
from tba.runs.alarms import Alarms, Known
from tba.runs.metrics import Metrics, Sink, TensorBoardSink, TrackioSink, WandbSink
from tba.search.constant_scores import ConstantScores
from tba.search.prompts import ChosenPrompts, Exploration, PromptStream
from tba.search.searcher import Searcher
from tba.seeds import Purpose, integer
from tba.tasks.base import Task
from tba.tasks.encoding import encoder
from tba.tasks.prepared import prepared
from tba.tasks.room import no_prompt_fits, room_for_prompts
from tba.types import SearcherName, Version

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
    trainer = Trainer(
        run=run,
        learner=build_learner(config, activity),
        supply=_supply(config, epochs, staleness),
        log=RolloutLog(run / ROLLOUTS),
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


def build_learner(config: Config, activity: Activity) -> LocalLearner:
    """The model that is trained as it is at first; a checkpoint is loaded into it."""
    device = device_of(config.model.device, "model.device")
    model = _trained_model(config, device)
    _beat_at_every_pass(model, activity)
    if config.model.gradient_checkpointing:
        _checkpoint_layers(model)
    policy = _policy(config, model)
    objective = config.objective.build(num_steps=config.trainer.num_steps, hidden_size=policy.hidden_size)
    for module in objective.modules.values():
        moved(module, device)
    optimization = Optimization(
        model,
        config.trainer,
        modules=objective.modules,
        modules_learning_rate=objective.modules_learning_rate,
    )
    return LocalLearner(
        policy,
        _tokenizer(config),
        objective,
        optimization,
        max_tokens=config.trainer.pass_tokens,
        max_grad_norm=config.trainer.max_grad_norm,
        activity=activity,
        reference=(lambda: build_reference(config, _reference_beside(config, model, device, activity)))
        if config.reference.where == "learner" and not config.reference.moves
        else None,
        moving_reference=_moving_reference(config, policy),
        reset_optimizer=config.reference.reset_optimizer,
        grad_cosine=config.metrics.grad_cosine,
    )


def _moving_reference(config: Config, policy: Policy) -> MovingReference | None:
    settings = config.reference
    return MovingReference(policy, reset_period=settings.reset_period, ema=settings.ema) if settings.moves else None


def build_searcher(
    config: Config,
    run: Path,
    name: SearcherName,
    *,
    weights: WeightSubscriber,
    groups: GroupSender,
    activity: Activity,
    taking_turns: bool,
    staleness: ExactStaleness | None = None,
) -> Searcher:
    """One Searcher. None repeats the prompts or samples of another, nor of one that had its place before.

    `taking_turns`: it makes what the next steps need, then waits for their weights. `staleness`: these are not the
    steps up to the next sync, but those that this schedule names.
    """
    index = name.index
    seed = (config.run.seed, index, name.incarnation)
    tokenizer = _tokenizer(config)
    device = _device_of_searcher(config, index)
    model = _trained_model(config, device, config.engine.dtype)
    _beat_at_every_pass(model, activity)
    task = prepared(run, lambda: build_task(config, tokenizer, model))
    scorer = build_scorer(config, task, str(device), waiting=activity.quiet)
    scorer.begin()
    engine = _engine(config, model, tokenizer, integer(Purpose.RESPONSES, *seed), config.engine.settled_precision)
    starting_model = cache(lambda: _reference_beside(config, model, device, activity))
    reference = build_reference(config, starting_model()) if config.reference.where == "searcher" else None
    scorer.start()
    evaluator = None
    if index == 0 and config.evaluation.period > 0 and task.held_out:
        evaluator = build_evaluator(
            config, engine, scorer, task, tokenizer=tokenizer, reference=starting_model, device=str(device)
        )
    return Searcher(
        str(name),
        engine=engine,
        reference=reference,
        scorer=scorer,
        prompts=(ChosenPrompts if config.searcher.prompts == "solve_rate" else PromptStream)(task.train, seed),
        exploration=Exploration(
            config.searcher.temperature_fraction,
            config.searcher.temperature_low,
            config.searcher.temperature_high,
            seed,
        ),
        weights=weights,
        groups=groups,
        num_responses=config.searcher.num_responses,
        prompts_per_batch=config.searcher.prompts_per_batch,
        activity=activity,
        skip_equal_rewards=config.searcher.skip_equal_rewards,
        in_flight_updates=config.engine.in_flight_updates,
        budget=_share_of_versions(config, index, staleness) if taking_turns else None,
        evaluate=None if evaluator is None else lambda: evaluator(lambda done: activity.beat()).values,
        evaluation_period=config.evaluation.period,
        skipped=task.skipped if index == 0 else None,
        constant_scores=ConstantScores(scorer.weights) if index == 0 else None,
        success_reward=config.evaluation.success_reward,
    )


def build_task(config: Config, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Task:
    """The task, without problems that leave no room for an answer in the model's context."""
    task = config.task.load(encoder(tokenizer))
    context = getattr(model.config, "max_position_embeddings", None)
    if context is None:
        return task
    room = room_for_prompts(context, config.engine.max_new_tokens)
    train, held_out = ([p for p in part if len(p.prompt.tokens) <= room] for part in (task.train, task.held_out))
    if task.train and not train:
        raise no_prompt_fits(context, config.engine.max_new_tokens)
    too_long = len(task.train) + len(task.held_out) - len(train) - len(held_out)
    skipped = {**task.skipped, **({"longer than the model's context": too_long} if too_long else {})}
    return replace(task, train=train, held_out=held_out, skipped=skipped)


def build_scorer(config: Config, task: Task, device: str = AUTO, *, waiting: Waiting = nullcontext) -> Scorer:
    """The rewards named; else the task's own; else, for an evaluation that names none, the gold model.

    `device` is the engine's, which models of rewards share unless they are given one of their own.
    """
    settings = config.reward
    functions: list[RewardSpec] = [*settings.functions]
    weights: Sequence[float] = settings.weights
    if settings.model is not None:
        functions.append(
            reward_model(
                settings.model,
                batch_size=settings.model_batch_size,
                normalize_mean=settings.normalize_mean,
                normalize_std=settings.normalize_std,
                no_eos_score=settings.no_eos_score,
                max_tokens=settings.model_max_tokens,
                device=settings.model_device,
            )
        )
    if not functions and task.default_reward is not None:
        functions, weights = [task.default_reward, *task.observers], (1.0, *(0.0 for _ in task.observers))
    if not functions and config.evaluation.gold_model is not None:
        return _gold_scorer(config, config.evaluation.gold_model, device, waiting)
    functions = [_beside(function, device) for function in functions]
    return Scorer(
        functions,
        weights,
        settings.timeout_seconds,
        settings.num_processes,
        settings.start_seconds,
        waiting,
        config.trainer.num_steps,
    )


def _gold_scorer(config: Config, path: str, device: str, waiting: Waiting) -> Scorer:
    settings = config.reward
    model = reward_model(
        path,
        batch_size=settings.model_batch_size,
        device=config.evaluation.gold_device,
        name="gold_model",
        device_setting="evaluation.gold_device",
    )
    return Scorer(
        [_beside(model, device)], (), settings.timeout_seconds, start_seconds=settings.start_seconds, waiting=waiting
    )


def _beside(reward: RewardSpec, device: str) -> RewardSpec:
    """A reward whose models go to that device unless its settings name another."""
    return replace(reward, settings=beside(reward.settings, device)) if isinstance(reward, RewardFactory) else reward


def build_engine(config: Config) -> tuple[TransformersEngine, PreTrainedTokenizerBase, PreTrainedModel]:
    """An engine on its own, for evaluation."""
    device = device_of(config.engine.device[0], "engine.device")
    model = moved(_load(config, config.model.path, config.engine.dtype), device)
    tokenizer = _tokenizer(config)
    seed = integer(Purpose.EVALUATED_RESPONSES, config.run.seed)
    return _engine(config, model, tokenizer, seed, "float32"), tokenizer, model


def _engine(
    config: Config, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int, precision: Precision
) -> TransformersEngine:
    return TransformersEngine(
        model,
        tokenizer,
        temperature=config.engine.temperature,
        max_new_tokens=config.engine.max_new_tokens,
        seed=seed,
        precision=precision,
        stop_text=config.engine.stop_text,
    )


def build_evaluator(
    config: Config,
    engine: TransformersEngine,
    scorer: Scorer,
    task: Task,
    *,
    tokenizer: PreTrainedTokenizerBase,
    reference: Callable[[], PreTrainedModel] | None = None,
    device: str = AUTO,
) -> Evaluator:
    """What the task's kind is judged by, on its held-out problems. `reference` gives the model that KL is measured to;
    an evaluation that measures none does not ask for it.

    `device` is the engine's, which models that judge share unless they are given one of their own.
    """
    settings = config.evaluation
    gold = settings.gold_model
    model = None if reference is None else cache(reference)
    return config.task.evaluator(
        Parts(
            engine,
            scorer,
            task,
            settings,
            num_responses=config.searcher.num_responses,
            num_tokens=lambda text: len(tokenizer(text, add_special_tokens=False).input_ids),
            seed=integer(Purpose.RESAMPLING, config.run.seed),
            gold=None if gold is None else lambda: _gold_scorer(config, gold, device, scorer.waiting),
            embedder=(lambda: _embedder(config, device)) if settings.embedding_model else None,
            reference=None if model is None else lambda temperature=None: build_reference(config, model(), temperature),
        )
    )


def _embedder(config: Config, device: str) -> Embedder:
    settings = config.evaluation
    own = settings.embedding_device
    return Embedder(settings.embedding_model, device=device if own == AUTO else own)


def compared_with(config: Config, device: torch.device) -> Callable[[], PreTrainedModel] | None:
    """The model that `tba eval` measures KL to, if one is named. `device` is the engine's."""
    path = config.evaluation.reference_model
    return None if path is None else lambda: _reference_model(config, path, device)


def build_reference(config: Config, model: PreTrainedModel, temperature: float | None = None) -> Reference:
    """What a model makes of responses. One with adapters is the reference while they are off, and whole."""

    @contextmanager
    def as_base() -> Iterator[None]:
        with without_adapters(model), in_full_precision(model):
            yield

    return Reference(
        _policy(config, model, temperature),
        max_tokens=config.trainer.pass_tokens,
        as_reference=as_base if has_adapters(model) else nullcontext,
    )


def _policy(config: Config, model: PreTrainedModel, temperature: float | None = None) -> Policy:
    return Policy(
        model,
        temperature=temperature or config.engine.temperature,
        chunk_tokens=config.model.logit_chunk_tokens,
        bf16=config.model.in_bfloat16,
    )


def _share_of_versions(config: Config, index: int, staleness: ExactStaleness | None) -> Callable[[Version], int]:
    """Groups that this Searcher makes of a version when it takes turns: all together, what the steps up to the next
    sync draw, or what the steps that are to be trained on the version do."""

    def share(version: Version) -> int:
        trainer = config.trainer
        total = staleness.owed(version.step) if staleness else trainer.num_groups * trainer.steps_to_sync(version.step)
        base, extra = divmod(total, config.searcher.num_searchers)
        return base + (index < extra)

    return share


def _device_of_searcher(config: Config, index: int) -> torch.device:
    learner = definite(config.model.device, num_gpus())
    return device_of(searcher_device(config.engine.device, index, learner, num_gpus()), "engine.device")


def _load(config: Config, path: str, dtype: str = "float32") -> PreTrainedModel:
    return load_model(
        path, attention=config.model.attention, trust_remote_code=config.model.trust_remote_code, dtype=dtype
    )


def _reference_beside(
    config: Config, policy: PreTrainedModel, device: torch.device, activity: Activity
) -> PreTrainedModel:
    """The model that training starts from. With adapters the policy has it in itself; both never work at once."""
    if has_adapters(policy):
        return policy
    model = _reference_model(config, config.model.path, device)
    _beat_at_every_pass(model, activity)
    return model


def _reference_model(config: Config, path: str, device: torch.device) -> PreTrainedModel:
    """A frozen copy of its own, beside an engine on that device."""
    if config.reference.device != AUTO:
        device = device_of(config.reference.device, "reference.device")
    model = moved(_load(config, path, config.reference.dtype).requires_grad_(False), device)
    # In bfloat16 it is computed as the policy is, by autocast: other roundings would pose as a difference of models.
    if not config.model.in_bfloat16:
        PackedLayers(model, "float32")  # its weights never change: packed once, it is faster for good
    return model


def _trained_model(config: Config, device: torch.device, dtype: str = "float32") -> PreTrainedModel:
    """What is trained. A model to evaluate is loaded without adapters: checkpoints have them merged."""
    model = _load(config, config.model.path, dtype)
    if config.model.lora_rank:
        add_adapters(
            model,
            rank=config.model.lora_rank,
            alpha=config.model.lora_alpha,
            targets=config.model.lora_targets,
            seed=integer(Purpose.ADAPTERS, config.run.seed),
        )
    return moved(model, device)


def _tokenizer(config: Config) -> PreTrainedTokenizerBase:
    return load_tokenizer(config.model.path, trust_remote_code=config.model.trust_remote_code)


def _beat_at_every_pass(model: PreTrainedModel, activity: Activity) -> None:
    """Whoever uses the model and for how long, each pass through it is a sign of life."""

    def beat(*_: Any) -> None:  # no bound method: a model that is copied takes its hooks along
        activity.beat()

    model.get_decoder().register_forward_pre_hook(beat)


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Gradient checkpointing acts on layers in training mode; their children stay in evaluation mode: no dropout."""
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True


def _known(config: Config, *, takes_turns: bool) -> Known:
    """What alarms must know of the run."""
    return Known(
        num_responses=config.searcher.num_responses,
        is_asynchronous=not takes_turns and not config.trainer.takes_turns,
        precisions=(
            *(config.engine.settled_precision, config.engine.dtype),
            "bfloat16" if config.model.in_bfloat16 else "float32",
        ),
        explores_hotter=config.searcher.temperature_fraction > 0,
    )


def _metrics(config: Config, run: Path, checkpoint: Checkpoint | None, started: float, known: Known) -> Metrics:
    settings = config.model_dump(mode="json")
    sinks: list[Sink] = []
    if config.metrics.tensorboard:
        sinks.append(TensorBoardSink(run))
    if config.metrics.wandb:
        sinks.append(WandbSink(run, settings))
    if config.metrics.trackio:
        sinks.append(TrackioSink(run, settings))
    before = checkpoint.state()["elapsed"] if checkpoint else 0.0
    return Metrics(run, elapsed=before + time.time() - started, sinks=sinks, alarms=Alarms(known))
