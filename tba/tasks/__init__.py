"""Tasks by kind. Each file has one `load` that turns its section of the settings into problems."""

from __future__ import annotations

from tba.config_tasks import (
    AdditionTaskConfig,
    ArithmeticTaskConfig,
    CustomTaskConfig,
    Gsm8kTaskConfig,
    MathTaskConfig,
    ReasoningGymTaskConfig,
    RedteamTaskConfig,
    TaskConfig,
    TldrTaskConfig,
)
from tba.tasks import addition, arithmetic, custom, gsm8k, math, reasoning_gym, redteam, tldr
from tba.tasks.base import Encode, Task


def load_task(config: TaskConfig, encode: Encode) -> Task:
    match config:
        case ArithmeticTaskConfig():
            return arithmetic.load(config, encode)
        case AdditionTaskConfig():
            return addition.load(config, encode)
        case Gsm8kTaskConfig():
            return gsm8k.load(config, encode)
        case MathTaskConfig():
            return math.load(config, encode)
        case ReasoningGymTaskConfig():
            return reasoning_gym.load(config, encode)
        case TldrTaskConfig():
            return tldr.load(config, encode)
        case RedteamTaskConfig():
            return redteam.load(config, encode)
        case CustomTaskConfig():
            return custom.load(config, encode)
