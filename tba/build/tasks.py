"""The task, and what its responses are judged by: the scorer and the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.build.models import build_reference
from tba.config.settings import Config
from tba.engines.transformers import TransformersEngine
from tba.evaluations.base import Evaluator, Parts
from tba.evaluations.embeddings import Embedder
from tba.policy.placement import AUTO, beside
from tba.rewards.functions import RewardFactory, RewardSpec
from tba.rewards.reward_model import reward_model
from tba.rewards.scorer import Scorer, Waiting
from tba.seeds import Purpose, integer
from tba.tasks.base import Task
from tba.tasks.encoding import encoder
from tba.tasks.room import no_prompt_fits, room_for_prompts


def build_task(config: Config, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> Task:
    """The task, without problems that leave no room for an answer in the model's context."""
    task = config.task.load(encoder(tokenizer, config.model.chat_template_kwargs))
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
        cut_off_score=None if isinstance(settings.cut_off, str) else settings.cut_off,
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
