"""Models by the settings: the one that is trained, its reference, and engines that generate with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tba.config.settings import Config
from tba.engines.packed_linear import PackedLayers, Precision, in_full_precision
from tba.engines.transformers import TransformersEngine
from tba.engines.truncation import Truncation
from tba.policy.devices import device_of, moved
from tba.policy.lora import add_adapters, has_adapters, without_adapters
from tba.policy.placement import AUTO
from tba.policy.policy import Policy, Reference, load_model, load_tokenizer
from tba.runs.activity import Activity
from tba.seeds import Purpose, integer


def build_engine(config: Config) -> tuple[TransformersEngine, PreTrainedTokenizerBase, PreTrainedModel]:
    """An engine on its own, for evaluation."""
    device = device_of(config.engine.device[0], "engine.device")
    model = moved(_load(config, config.model.path, config.engine.dtype), device)
    tokenizer = tokenizer_of(config)
    seed = integer(Purpose.EVALUATED_RESPONSES, config.run.seed)
    return engine_of(config, model, tokenizer, seed, "float32"), tokenizer, model


def engine_of(
    config: Config, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int, precision: Precision
) -> TransformersEngine:
    return TransformersEngine(
        model,
        tokenizer,
        temperature=config.engine.temperature,
        max_new_tokens=config.engine.max_new_tokens,
        seed=seed,
        precision=precision,
        stop=config.engine.stop,
        truncation=Truncation(config.engine.top_p, config.engine.top_k, config.engine.min_p),
    )


def build_reference(config: Config, model: PreTrainedModel, temperature: float | None = None) -> Reference:
    """What a model makes of responses. One with adapters is the reference while they are off, and whole."""

    @contextmanager
    def as_base() -> Iterator[None]:
        with without_adapters(model), in_full_precision(model):
            yield

    return Reference(
        policy_of(config, model, temperature),
        max_tokens=config.trainer.pass_tokens,
        as_reference=as_base if has_adapters(model) else nullcontext,
    )


def compared_with(config: Config, device: torch.device) -> Callable[[], PreTrainedModel] | None:
    """The model that `tba eval` measures KL to, if one is named. `device` is the engine's."""
    path = config.evaluation.reference_model
    return None if path is None else lambda: _reference_model(config, path, device)


def reference_beside(
    config: Config, policy: PreTrainedModel, device: torch.device, activity: Activity
) -> PreTrainedModel:
    """The model that training starts from. With adapters the policy has it in itself; both never work at once."""
    if has_adapters(policy):
        return policy
    model = _reference_model(config, config.model.path, device)
    beat_at_every_pass(model, activity)
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


def trained_model(config: Config, device: torch.device, dtype: str = "float32") -> PreTrainedModel:
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


def _load(config: Config, path: str, dtype: str = "float32") -> PreTrainedModel:
    return load_model(
        path, attention=config.model.attention, trust_remote_code=config.model.trust_remote_code, dtype=dtype
    )


def policy_of(config: Config, model: PreTrainedModel, temperature: float | None = None) -> Policy:
    return Policy(
        model,
        temperature=temperature or config.engine.temperature,
        chunk_tokens=config.model.logit_chunk_tokens,
        bf16=config.model.in_bfloat16,
    )


def tokenizer_of(config: Config) -> PreTrainedTokenizerBase:
    model = config.model
    return load_tokenizer(model.path, trust_remote_code=model.trust_remote_code, chat_template=model.chat_template)


def beat_at_every_pass(model: PreTrainedModel, activity: Activity) -> None:
    """Whoever uses the model and for how long, each pass through it is a sign of life."""

    def beat(*_: Any) -> None:  # no bound method: a model that is copied takes its hooks along
        activity.beat()

    model.get_decoder().register_forward_pre_hook(beat)
