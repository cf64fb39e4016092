"""AdamW, its learning-rate schedule, and their state as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, get_scheduler

from tba.config.training import TrainerConfig
from tba.policy.devices import CPU


class Optimization:
    def __init__(
        self,
        model: PreTrainedModel,
        config: TrainerConfig,
        *,
        modules: Mapping[str, nn.Module] | None = None,
        modules_learning_rate: float = 1e-3,
    ) -> None:
        """`modules` are what the objective learns beside the policy, by name."""
        self._named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters = list(self._named.values())
        """The policy's. The modules have a rate of their own, and their gradients are not part of the policy's norm."""
        beside = {
            f"{name}.{key}": p for name, module in (modules or {}).items() for key, p in module.named_parameters()
        }
        self._beside = list(beside.values())
        groups: list[dict[str, Any]] = [{"params": self.parameters}]
        if beside:
            self._named |= beside
            groups.append({"params": self._beside, "lr": modules_learning_rate, "weight_decay": 0.0})
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(config.adam_beta1, config.adam_beta2),
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._schedule = _schedule(self._optimizer, config)

    @property
    def learning_rate(self) -> float:
        """The rate the next step will use."""
        return float(self._schedule.get_last_lr()[0])

    def step(self) -> None:
        self._optimizer.step()
        self._schedule.step()

    def modules_are_finite(self) -> bool:
        """Whether the gradients of the modules are, as far as they have one."""
        return all(bool(p.grad.isfinite().all()) for p in self._beside if p.grad is not None)

    def zero_grad(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    def forget_moments(self) -> None:
        """Those of the policy; its learning rate and what the objective learns go on as they are."""
        for parameter in self.parameters:
            self._optimizer.state.pop(parameter, None)

    def tensors(self) -> dict[str, Tensor]:
        """The optimizer's state by parameter name, for safetensors."""
        return {
            f"{kind}/{name}": value
            for name, parameter in self._named.items()
            for kind, value in self._optimizer.state.get(parameter, {}).items()
        }

    def schedule_state(self) -> dict[str, Any]:
        return {k: v for k, v in self._schedule.state_dict().items() if k != "lr_lambdas"}

    def restore(self, tensors: Mapping[str, Tensor], schedule: Mapping[str, Any]) -> None:
        for key, value in tensors.items():
            kind, _, name = key.partition("/")
            parameter = self._named[name]
            self._optimizer.state[parameter][kind] = value.to(parameter.device, copy=True)
        self._schedule.load_state_dict({**schedule, "lr_lambdas": [None] * len(self._optimizer.param_groups)})
        for group, rate in zip(self._optimizer.param_groups, self._schedule.get_last_lr(), strict=True):
            group["lr"] = rate


def _schedule(optimizer: torch.optim.Optimizer, config: TrainerConfig) -> LambdaLR:
    """transformers' schedules but for the warm-up, whose first step would have the rate 0 there: of W steps of warm-up
    the i-th has i / (W + 1) of the peak, and the next the peak itself."""
    specific = {}
    if config.schedule == "warmup_stable_decay":
        specific = {"num_decay_steps": config.decay_steps or max(1, config.num_steps // 5)}
    shape = get_scheduler(
        "constant_with_warmup" if config.schedule == "constant" else config.schedule,
        torch.optim.SGD([torch.zeros(1, device=CPU)], lr=1.0),  # stands in for the optimizer, and is never stepped
        num_warmup_steps=config.warmup_steps,
        num_training_steps=config.num_steps,
        scheduler_specific_kwargs=specific,
    ).lr_lambdas[0]

    def share_of_peak(num_made: int) -> float:
        warmup = config.warmup_steps
        return (num_made + 1) / (warmup + 1) if num_made < warmup else float(shape(num_made))

    return LambdaLR(optimizer, share_of_peak)
