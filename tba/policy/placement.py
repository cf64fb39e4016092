"""Which device each model of a run lives on: `auto` made definite, and names checked. Loads no torch.

How many GPUs there are is an argument: whoever has torch asks it (`devices.num_gpus`), whoever has not asks a process
that has (`launch/preflight.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tba.config.section import Section
from tba.types import TbaError

AUTO, CPU = "auto", "cpu"


def definite(device: str, num_gpus: int) -> str:
    """`auto` is the first GPU, or the CPU where there is none."""
    return device if device != AUTO else "cuda:0" if num_gpus else CPU


def searcher_device(devices: Sequence[str], index: int, learner: str, num_gpus: int) -> str:
    """That of a Searcher's engine. `auto` deals Searchers out over the GPUs but the Learner's, if there are others."""
    device = devices[index % len(devices)]
    if device != AUTO or not num_gpus:
        return definite(device, num_gpus)
    gpus = [f"cuda:{number}" for number in range(num_gpus)]
    others = [gpu for gpu in gpus if gpu != with_number(learner)] or gpus
    return others[index % len(others)]


def with_number(device: str) -> str:
    """`cuda` is the first GPU."""
    return "cuda:0" if device == "cuda" else device


def check_device(device: str, setting: str, num_gpus: int) -> None:
    """Raise TbaError if the machine does not have the device that a setting names."""
    if device in (AUTO, CPU) or int(with_number(device).removeprefix("cuda:")) < num_gpus:
        return
    if not num_gpus:
        raise TbaError(f"{setting} = {device!r}: torch finds no GPU here; use auto or cpu, or a torch with CUDA")
    raise TbaError(f"{setting} = {device!r}: torch finds cuda:0 to cuda:{num_gpus - 1} here; use one of these, or auto")


def named_devices(config: Section, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every setting that is a device, by its name, with what it says; one that lists several, several times."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, Section):
            yield from named_devices(value, f"{prefix}{name}.")
        elif is_device(name):
            for device in (value,) if isinstance(value, str) else value:
                yield f"{prefix}{name}", device


def is_device(name: str) -> bool:
    """Whether a setting of this name is a device."""
    return name == "device" or name.endswith("_device")


def beside(settings: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Settings in which `auto` is that device: the models they name go where another one is."""
    return {name: device if is_device(name) and value == AUTO else value for name, value in settings.items()}
