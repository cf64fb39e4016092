"""The settings and the folder of a replay: those of the run it repeats, but for what the recorded data leave open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tba.config.help import setting_names
from tba.config.settings import Config
from tba.config.text import expand
from tba.runs.folder import new_run
from tba.runs.run_config import REPLAY, replayed_config
from tba.types import TbaError

CHANGEABLE = (
    "objective.*",
    "trainer.num_steps",
    "trainer.learning_rate",
    "trainer.schedule",
    "trainer.warmup_steps",
    "trainer.decay_steps",
    "trainer.weight_decay",
    "trainer.adam_beta1",
    "trainer.adam_beta2",
    "trainer.max_grad_norm",
    "trainer.micro_batch_tokens",
    "model.precision",
    "model.attention",
    "model.gradient_checkpointing",
    "model.logit_chunk_tokens",
    "model.lora_*",
    "checkpoint.*",
    "metrics.*",
    "run.name",
    "run.root",
    "run.num_threads",
    "run.display",
)
"""Settings that a replay may change. All others made the recorded data, or have no use without Searchers."""


def replay_config(run: Path, overrides: Mapping[str, Any]) -> Config:
    """The settings of a replay of this run: with a display of its own and a folder beside the run, unless given."""
    refused = [name for name in _named(overrides) if name in setting_names() and not is_changeable(name)]
    if refused:
        raise TbaError(
            f"{', '.join(refused)} cannot change in a replay, which has the recorded data and no Searchers: "
            "`tba replay --help` lists the settings that can"
        )
    original = run if run.name else run.resolve()
    own = {
        "name": f"{original.name}-replay-{time.strftime('%Y%m%d-%H%M%S')}",
        "root": str(original.parent),
        "display": "auto",
    }
    return replayed_config(run, {**overrides, "run": {**own, **overrides.get("run", {})}})


@contextmanager
def new_replay(config: Config, of: Path, num_steps: int) -> Iterator[Path]:
    """Make the folder of a replay and hold it until the end of the block. It says which run it repeats, and how many of
    its steps."""
    target = Path(config.run.root) / config.run.name
    if target.exists():
        raise TbaError(f"{target} exists already: choose another --run.name for the replay")
    with new_run(config, overwrite=False) as run:
        (run / REPLAY).write_text(json.dumps({"of": str(of), "num_steps": num_steps}) + "\n", "utf-8")
        yield run


def is_changeable(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in CHANGEABLE)


def _named(overrides: Mapping[str, Any]) -> list[str]:
    """The overrides as `section.key`, also of a section that was given as one value."""
    sections = ((name, expand(name, value) if isinstance(value, str) else value) for name, value in overrides.items())
    return [f"{section}.{key}" for section, values in sections for key in values]
