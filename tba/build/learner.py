"""The Learner: the model that is trained, with its objective and its optimizer."""

from __future__ import annotations

from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tba.build.models import (
    beat_at_every_pass,
    build_reference,
    policy_of,
    reference_beside,
    tokenizer_of,
    trained_model,
)
from tba.config.settings import Config
from tba.learn.learner import LocalLearner
from tba.learn.moving_reference import MovingReference
from tba.learn.optimization import Optimization
from tba.policy.devices import device_of, moved
from tba.policy.policy import Policy
from tba.runs.activity import Activity


def build_learner(config: Config, activity: Activity) -> LocalLearner:
    """The model that is trained as it is at first; a checkpoint is loaded into it."""
    device = device_of(config.model.device, "model.device")
    model = trained_model(config, device)
    beat_at_every_pass(model, activity)
    if config.model.gradient_checkpointing:
        _checkpoint_layers(model)
    policy = policy_of(config, model)
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
        tokenizer_of(config),
        objective,
        optimization,
        max_tokens=config.trainer.pass_tokens,
        max_grad_norm=config.trainer.max_grad_norm,
        activity=activity,
        reference=(lambda: build_reference(config, reference_beside(config, model, device, activity)))
        if config.reference.where == "learner" and not config.reference.moves
        else None,
        moving_reference=_moving_reference(config, policy),
        reset_optimizer=config.reference.reset_optimizer,
        grad_cosine=config.metrics.grad_cosine,
    )


def _moving_reference(config: Config, policy: Policy) -> MovingReference | None:
    settings = config.reference
    return MovingReference(policy, reset_period=settings.reset_period, ema=settings.ema) if settings.moves else None


def _checkpoint_layers(model: PreTrainedModel) -> None:
    """Gradient checkpointing acts on layers in training mode; their children stay in evaluation mode: no dropout."""
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.training = True
