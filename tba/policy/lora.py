"""Low-rank adapters through peft: the policy is the base model with adapters, and only they are trained.

They are injected into the plain transformers model, which keeps its class and methods, so log-probabilities and
generation need not know of them. Whoever reads a checkpoint need not either: its model is saved merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tba.extras import install_hint
from tba.types import TbaError, first_line

_ADAPTER = "default"
"""peft's name of the only adapter."""


def add_adapters(model: PreTrainedModel, *, rank: int, alpha: float, targets: Sequence[str], seed: int) -> None:
    """Freeze the model and give its linear layers adapters that start as nothing: B = 0.

    `targets` names layers by the end of their name; `all-linear` means all but the output head.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        raise TbaError(f"model.lora_rank needs the package peft: {install_hint('lora')}") from None
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="all-linear" if list(targets) == ["all-linear"] else list(targets),
        lora_dropout=0.0,  # trajectory balance needs one density
    )
    model.requires_grad_(False)
    try:
        # Made on the CPU, so that they begin alike on any device.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            inject_adapter_in_model(config, model)
    except ValueError as error:
        raise TbaError(
            f"model.lora_targets = {','.join(targets)!r} does not fit the model: {first_line(error)}"
        ) from None
    for layer in (model.get_output_embeddings(), model.get_input_embeddings()):
        if isinstance(layer, BaseTunerLayer):
            raise TbaError("model.lora_targets includes the embeddings or the output head: name inner layers only")
    model.eval()


def has_adapters(model: PreTrainedModel) -> bool:
    return hasattr(model, "peft_config")


@contextmanager
def without_adapters(model: PreTrainedModel) -> Iterator[None]:
    """The base model for the time of the context: the same weights, with the adapters switched off."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    try:
        for layer in layers:
            layer.enable_adapters(False)
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def save_merged(model: PreTrainedModel, path: Path) -> None:
    """Write a plain Hugging Face directory. Adapters are merged in a copy: training goes on with its own numbers."""
    if has_adapters(model):
        model = merged(model)
    model.save_pretrained(path)


def save_evaluated(model: PreTrainedModel, path: Path) -> None:
    """Write a plain Hugging Face directory of a model that an engine generates with: its layers may be packed ones, and
    are not copied. Adapters are merged layer by layer, without a second copy of the model."""
    model.save_pretrained(path, state_dict=_merged_tensors(model))


@torch.no_grad()
def _merged_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    tensors = dict(model.state_dict())
    if not has_adapters(model):
        return tensors
    from peft.tuners.lora import LoraLayer

    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            weight = tensors[f"{name}.base_layer.weight"]
            delta = layer.get_delta_weight(_ADAPTER)
            tensors[f"{name}.base_layer.weight"] = weight + delta.to(weight.dtype)
    return {name.replace(".base_layer.", "."): tensor for name, tensor in tensors.items() if ".lora_" not in name}


def save_adapter(model: PreTrainedModel, path: Path) -> None:
    """Write the adapters as a folder that `peft.PeftModel.from_pretrained` loads on top of the base model."""
    from safetensors.torch import save_file

    adapters: Mapping[str, Any] = model.peft_config
    config = replace(
        adapters[_ADAPTER],
        base_model_name_or_path=model.name_or_path,
        task_type="CAUSAL_LM",
        inference_mode=True,
    )
    config.save_pretrained(path)
    named = {name.replace(f".{_ADAPTER}.", "."): tensor for name, tensor in adapter_tensors(model).items()}
    tensors = {f"base_model.model.{name}": tensor.cpu().contiguous() for name, tensor in named.items()}
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A copy on the CPU in which every adapted layer is a plain one again, with W + (alpha / rank) · B A for its
    weights."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    copy = _copy_on_cpu(model)
    adapted = [(name, layer) for name, layer in copy.named_modules() if isinstance(layer, BaseTunerLayer)]
    for name, layer in adapted:
        layer.merge()
        parent, _, attribute = name.rpartition(".")
        setattr(copy.get_submodule(parent), attribute, layer.get_base_layer())
    del copy.peft_config
    return copy


def _copy_on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    """A GPU has no room to spare for a second copy."""
    copies: dict[int, Any] = {id(b): b.detach().to("cpu", copy=True) for b in model.buffers()}
    for parameter in model.parameters():
        moved = parameter.detach().to("cpu", copy=True)
        copies[id(parameter)] = torch.nn.Parameter(moved, requires_grad=parameter.requires_grad)
    return deepcopy(model, copies)  # takes what it is given for the tensors, and copies the rest


def adapter_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """The adapters as they are, for a checkpoint: what a merged model holds of them is rounded."""
    if not has_adapters(model):
        return {}
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def restore_adapters(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> None:
    """Put adapters back as they were saved."""
    for name, parameter in adapter_tensors(model).items():
        parameter.copy_(tensors[name])
