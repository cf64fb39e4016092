"""One Searcher, with its engine, its prompts and its share of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.build.models import (
    beat_at_every_pass,
    build_reference,
    engine_of,
    reference_beside,
    tokenizer_of,
    trained_model,
)
from tba.build.tasks import build_evaluator, build_scorer, build_task
from tba.channels.base import GroupSender, WeightSubscriber
from tba.config.settings import Config
from tba.engines.transformers import TransformersEngine
from tba.evaluations.base import Evaluator
from tba.learn.exact_staleness import ExactStaleness
from tba.policy.devices import device_of, num_gpus
from tba.policy.lora import has_adapters, save_adapter, save_evaluated
from tba.policy.placement import definite, searcher_device
from tba.runs.activity import STARTING, Activity
from tba.runs.best import KeptBest
from tba.search.constant_scores import ConstantScores
from tba.search.hand_up import HandUp
from tba.search.prompts import ChosenPrompts, Exploration, PromptStream
from tba.search.reports import Reports
from tba.search.searcher import Searcher
from tba.seeds import Purpose, integer
from tba.tasks.prepared import prepared
from tba.types import SearcherName, Version


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
    tokenizer = tokenizer_of(config)
    device = _device_of_searcher(config, index)
    has_reference = config.reference.where == "searcher"
    num_models = 2 if has_reference and not config.model.lora_rank else 1
    with _loading(activity, 1, num_models):
        model = trained_model(config, device, config.engine.dtype)
    beat_at_every_pass(model, activity)
    with activity(STARTING, "encoding prompts"), activity.quiet():
        task = prepared(run, lambda: build_task(config, tokenizer, model))
    scorer = build_scorer(config, task, str(device), waiting=activity.quiet)
    scorer.begin()
    engine = engine_of(config, model, tokenizer, integer(Purpose.RESPONSES, *seed), config.engine.settled_precision)
    starting_model = cache(lambda: reference_beside(config, model, device, activity))
    reference = None
    if has_reference:
        with _loading(activity, num_models, num_models):
            reference = build_reference(config, starting_model())
    with activity(STARTING, "starting reward processes"), activity.quiet():
        scorer.start()
    evaluator = None
    if index == 0 and config.evaluation.period > 0 and task.held_out:
        evaluator = build_evaluator(
            config, engine, scorer, task, tokenizer=tokenizer, reference=starting_model, device=str(device)
        )
    prompts = (ChosenPrompts if config.searcher.prompts == "solve_rate" else PromptStream)(task.train, seed)
    best = None
    if evaluator is not None and config.checkpoint.keep_best:
        best = KeptBest(run, config.task.headline.metric_of, lambda folder: _save_evaluated(model, tokenizer, folder))
    reports = Reports(str(name), groups, activity, config.evaluation.success_reward)
    hand_up = HandUp(
        str(name),
        scorer=scorer,
        reference=reference,
        groups=groups,
        reports=reports,
        activity=activity,
        prompts_per_batch=config.searcher.prompts_per_batch,
        skip_equal_rewards=config.searcher.skip_equal_rewards,
        tells_of_unused=prompts.are_chosen,
        constant_scores=ConstantScores(scorer.weights) if index == 0 else None,
        drop_cut_off=config.reward.cut_off == "drop",
    )
    return Searcher(
        engine=engine,
        prompts=prompts,
        exploration=Exploration(
            config.searcher.temperature_fraction,
            config.searcher.temperature_low,
            config.searcher.temperature_high,
            seed,
        ),
        weights=weights,
        hand_up=hand_up,
        reports=reports,
        num_responses=config.searcher.num_responses,
        prompts_per_batch=config.searcher.prompts_per_batch,
        activity=activity,
        in_flight_updates=config.engine.in_flight_updates,
        budget=_share_of_versions(config, index, staleness) if taking_turns else None,
        evaluate=None if evaluator is None else _evaluation(evaluator, engine, best, activity),
        evaluated_prompts=0 if evaluator is None else sum(one.num_prompts for one in evaluator.passes),
        evaluation_period=config.evaluation.period,
        skipped=task.skipped if index == 0 else None,
    )


@contextmanager
def _loading(activity: Activity, number: int, num_models: int) -> Iterator[None]:
    """While one of the models is loaded: the policy is the first, its reference the second, if there is one."""
    which = "loading the model" if num_models == 1 else f"loading models {number}/{num_models}"
    with activity(STARTING, which), activity.quiet():
        yield


def _evaluation(
    evaluator: Evaluator, engine: TransformersEngine, best: KeptBest | None, activity: Activity
) -> Callable[[], Mapping[str, Any]]:
    """Evaluates what the engine holds, and keeps it if it is the best so far."""

    def evaluate() -> Mapping[str, Any]:
        values = evaluator(activity.advance).values
        if best is None:
            return values
        with activity.quiet():
            return {**values, **best.offer(engine.version, values)}

    return evaluate


def _save_evaluated(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    save_evaluated(model, folder / "model")
    tokenizer.save_pretrained(folder / "model")
    if has_adapters(model):
        save_adapter(model, folder / "adapter")


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
