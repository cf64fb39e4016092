"""Asynchronous, off-policy post-training of language models with trajectory balance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tba.api import resume, train
    from tba.config.settings import Config
    from tba.objectives import Evidence, Loss, Objective
    from tba.runs.callbacks import StopRun
    from tba.runs.result import Result
    from tba.types import TbaError

__all__ = ["Config", "Evidence", "Loss", "Objective", "Result", "StopRun", "TbaError", "resume", "train"]
__version__ = "0.1.0"

_WHERE = {
    "Config": "config.settings",
    "Evidence": "objectives",
    "Loss": "objectives",
    "Objective": "objectives",
    "Result": "runs.result",
    "StopRun": "runs.callbacks",
    "TbaError": "types",
    "resume": "api",
    "train": "api",
}


def __getattr__(name: str) -> Any:
    """Names are imported when first used, so that `import tba` stays instant."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tba' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"tba.{_WHERE[name]}"), name)
