"""Tasks by kind. Each file has one `load` that turns its section of the settings into problems."""

from __future__ import annotations

from tba.config_tasks import ArithmeticTaskConfig, TaskConfig, TldrTaskConfig
from tba.tasks import arithmetic, custom, tldr
from tba.tasks.base import Encode, Task


def load_task(config: TaskConfig, encode: Encode) -> Task:
    if isinstance(config, ArithmeticTaskConfig):
        return arithmetic.load(config, encode)
    if isinstance(config, TldrTaskConfig):
        return tldr.load(config, encode)
    return custom.load(config, encode)
