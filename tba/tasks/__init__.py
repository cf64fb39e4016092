"""Tasks by kind. Each file has one `load` that turns its section of the settings into problems."""

from __future__ import annotations

from tba.config_tasks import ArithmeticTaskConfig, CustomTaskConfig, RedteamTaskConfig
from tba.tasks import arithmetic, custom, redteam
from tba.tasks.base import Encode, Task


def load_task(config: ArithmeticTaskConfig | CustomTaskConfig | RedteamTaskConfig, encode: Encode) -> Task:
    if isinstance(config, ArithmeticTaskConfig):
        return arithmetic.load(config, encode)
    if isinstance(config, RedteamTaskConfig):
        return redteam.load(config, encode)
    return custom.load(config, encode)
