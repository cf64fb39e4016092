"""A Learner in one process: the model that is trained, its optimizer, and one step of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from transformers import PreTrainedTokenizerBase

from tba.learn.base import Floats, StepResult
from tba.learn.evidence import Gap, Pass, gap_of, totals_of
from tba.learn.grad_sketch import GradSketch
from tba.learn.moving_reference import MovingReference
from tba.learn.optimization import Optimization
from tba.objectives import Loss, Objective
from tba.policy.batch import Answered, Batch, collate, micro_batches
from tba.policy.devices import as_tensor
from tba.policy.lora import adapter_tensors, has_adapters, restore_adapters, save_adapter, save_merged
from tba.policy.policy import Logprobs, Policy, Reference, copy_weights, export_weights, load_model
from tba.runs.activity import Activity
from tba.types import Group, TbaError, TokenLogprobs

MODEL, ADAPTER, TENSORS, STATE = "model", "adapter", "state/tensors.safetensors", "state/learner.json"
"""What it saves, below the folder of a checkpoint."""
_ADAPTER, _REFERENCE, _SKETCH = "adapter", "reference", "grad_sketch"


class LocalLearner:
    """A Learner in this process."""

    def __init__(
        self,
        policy: Policy,
        tokenizer: PreTrainedTokenizerBase,
        objective: Objective,
        optimization: Optimization,
        *,
        max_tokens: int,
        max_grad_norm: float,
        activity: Activity,
        reference: Callable[[], Reference] | None = None,
        moving_reference: MovingReference | None = None,
        reset_optimizer: bool = False,
        grad_cosine: bool = True,
    ) -> None:
        """`max_tokens` go through a forward and backward pass at once. `reference` loads the reference model when it is
        first asked for: a replay, whose data have been read by it, never does. None: Searchers have it, or it is a
        `moving_reference`. With `reset_optimizer` the optimizer begins anew when that is reset. `grad_cosine`: whether
        to compare the gradients of consecutive steps."""
        self.policy = policy
        self.objective = objective
        self._tokenizer = tokenizer
        self._optimization = optimization
        self._max_tokens = max_tokens
        self._max_grad_norm = max_grad_norm
        self._activity = activity
        self._reference = None if reference is None else cache(reference)
        self._moving_reference = moving_reference
        self._reset_optimizer = reset_optimizer
        self._sketch = GradSketch(optimization.parameters) if grad_cosine else None

    def step(self, groups: Sequence[Group], age_GK: NDArray[np.int64], step: int) -> StepResult:
        plan = list(micro_batches(groups, self._max_tokens))
        totals = totals_of(groups)
        device = self.policy.device

        def passes() -> Iterator[Pass]:
            for numbers in plan:
                with self._activity("collate"):
                    batch = collate([groups[i] for i in numbers], self._max_tokens, self.policy.model.dtype, device)
                if self._moving_reference is not None:
                    with self._activity("reference"):
                        batch = replace(batch, reference_J=self._moving_reference.logprobs(batch))
                yield Pass(batch, as_tensor(age_GK[numbers], device), step, totals)

        if self.objective.wants_first_look:
            self.objective.first_look([one.evidence(self._logprobs(one.batch)) for one in passes()])
        losses: list[Loss] = []
        gaps: list[Gap] = []
        length = len(plan) if len(plan) > 1 else 0
        for number, one in enumerate(passes()):
            with self._activity("compute", f"step {step}", total=length, unit="passes"):
                self._activity.reached(number)
                loss, gap = self._accumulate(one)
                losses.append(loss)
                gaps.append(gap)
        with self._activity("optimize"):
            learning_rate = self._optimization.learning_rate
            grad_cosine = None if self._sketch is None else self._sketch.cosine()
            grad_norm, updated = self._update()
            if self._moving_reference is not None and self._moving_reference.follow(step) and self._reset_optimizer:
                self._optimization.forget_moments()
        given = np.argsort([number for numbers in plan for number in numbers])

        def of_all(arrays: Iterable[Tensor]) -> Floats:
            values_GK: Floats = torch.cat(list(arrays)).double().cpu().numpy()
            return values_GK[given]

        values = {name: of_all(loss.values_GK[name] for loss in losses) for name in losses[0].values_GK}
        metrics = self.objective.metrics(step, values)
        self.objective.after_step(values)
        return StepResult(
            loss=sum(float(loss.value.detach()) for loss in losses),
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            updated=updated,
            advantage_GK=of_all(loss.advantage_GK for loss in losses),
            gap_GK=of_all(gap.mean_GK for gap in gaps),
            largest_gap_GK=of_all(gap.largest_GK for gap in gaps),
            log_pi_mu_GK=of_all(gap.sum_GK for gap in gaps),
            metrics=metrics,
            grad_cosine=grad_cosine,
        )

    def reference_logprobs(self, answered: Sequence[Answered]) -> list[list[TokenLogprobs]]:
        if self._moving_reference is not None:
            return [[np.full(len(r), np.nan, np.float32) for r in responses] for _, responses in answered]
        assert self._reference is not None, "the Searchers have the reference"
        return self._reference().token_logprobs(answered)

    def weights(self) -> Mapping[str, NDArray[np.uint8]]:
        return export_weights(self.policy.model)

    def save(self, folder: Path) -> None:
        save_merged(self.policy.model, folder / MODEL)
        if has_adapters(self.policy.model):
            save_adapter(self.policy.model, folder / ADAPTER)
        self._tokenizer.save_pretrained(folder / MODEL)
        (folder / TENSORS).parent.mkdir(exist_ok=True)
        save_file(self._tensors(), folder / TENSORS)
        state = {"schedule": self._optimization.schedule_state(), "objective": self.objective.state()}
        (folder / STATE).write_text(json.dumps(state), "utf-8")

    def load(self, folder: Path) -> None:
        model = self.policy.model
        tensors = load_file(folder / TENSORS)
        if has_adapters(model):  # the saved model has them merged, and rounded; the base is as it was
            restore_adapters(model, _take(_ADAPTER, tensors))
        else:
            copy_weights(load_model(str(folder / MODEL)), model)
        self._load_reference(_take(_REFERENCE, tensors))
        for name, module in self.objective.modules.items():
            module.load_state_dict(_take(name, tensors))
        sketch = _take(_SKETCH, tensors).get("last")
        if self._sketch is not None:
            self._sketch.restore(sketch)
        state = _state(folder)
        self.objective.restore(state.get("objective", {}))
        self._optimization.restore(tensors, state["schedule"])

    def _load_reference(self, tensors: Mapping[str, Tensor]) -> None:
        """Without tensors, the reference has not moved so far: it is the model that training started from."""
        if not tensors:
            return
        if self._moving_reference is None:
            # What was merged has not been read by any reference, so a reference that stays has no use for it.
            raise TbaError(
                "the reference of this run follows the policy, which cannot be changed at a resume: "
                "keep reference.reset_period or reference.ema"
            )
        self._moving_reference.restore(tensors)

    def _accumulate(self, one: Pass) -> tuple[Loss, Gap]:
        """Add the gradient of these groups. Each group is compared as a whole, in however many parts it is computed."""
        parts = one.batch.parts
        if len(parts) == 1:
            evidence = one.evidence(self.policy(parts[0]))
            loss = self.objective(evidence)
            loss.value.backward()
            return loss, gap_of(evidence)
        # The chain rule cut in two: what the loss says of every log-probability, then each part's way to the weights.
        known = self._logprobs(one.batch)
        tokens_T = known.tokens_T.requires_grad_()
        evidence = one.evidence(known)
        loss = self.objective(evidence)
        loss.value.backward()
        assert tokens_T.grad is not None
        for part, gradient_T in zip(parts, tokens_T.grad.split(one.batch.num_tokens_of_parts), strict=True):
            self.policy(part).tokens_T.backward(gradient_T)
        return loss, gap_of(evidence)

    @torch.no_grad()
    def _logprobs(self, batch: Batch) -> Logprobs:
        """Those of all parts, without a gradient."""
        found: list[Logprobs] = [self.policy(part) for part in batch.parts]
        return Logprobs(torch.cat([logprobs.tokens_T for logprobs in found]), found[0].prompt_GH)

    def _update(self) -> tuple[float, bool]:
        """Step if every gradient is finite: the norm of the policy's, and whether it stepped."""
        norm = float(clip_grad_norm_(self._optimization.parameters, self._max_grad_norm))
        finite = math.isfinite(norm) and self._optimization.modules_are_finite()
        if finite:
            self._optimization.step()
        self._optimization.zero_grad()
        return norm, finite

    def _tensors(self) -> dict[str, Tensor]:
        """What the saved model does not hold exactly: the optimizer's state, adapters, what the objective learns, and
        the reference if it moves, what the next gradient is compared with."""
        parts: dict[str, Mapping[str, Tensor]] = {
            name: module.state_dict() for name, module in self.objective.modules.items()
        }
        parts[_ADAPTER] = adapter_tensors(self.policy.model)
        if self._moving_reference is not None:
            parts[_REFERENCE] = self._moving_reference.tensors()
        if self._sketch is not None and self._sketch.last is not None:
            parts[_SKETCH] = {"last": self._sketch.last}
        named = {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return {**self._optimization.tensors(), **named}


def _take(part: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move out what is saved under this name; what is under none is the optimizer's."""
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensors.pop(name) for name in list(tensors) if name.startswith(prefix)}


def _state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    if not path.exists():  # checkpoints of 0.1.0 have it in the Trainer's file
        path = path.with_name("state.json")
    state: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return state
