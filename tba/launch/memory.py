"""`auto` of `trainer.micro_batch_tokens` becomes a number, by what a run takes and what is free; the run says both.

As with precisions (`precision.py`), what was chosen stands in the run's settings, so that every resume has the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.config.training import USUAL_PASS
from tba.launch.meeting import num_weights
from tba.launch.memory_estimate import PROMPT_TOKENS, Estimate, estimate, shape_of
from tba.launch.nursery import has_gpu
from tba.launch.precision import MIN_WEIGHTS, names_a_gpu, write_event
from tba.learn.checkpoint import Checkpoint
from tba.policy.names import model_directory, read_model_config
from tba.runs.run_config import write_run_config

SHARE = 0.8
"""Of the free memory that a run may be planned to take."""
STEP, LEAST = 256, 256
"""A chosen pass has a multiple of the first, and at least the second."""
GIGABYTE = 1e9
LOWER = "lower trainer.micro_batch_tokens, searcher.prompts_per_batch or searcher.num_searchers"
_MEMINFO, _CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def settle_memory(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    *,
    repeatable: bool = False,
    free: float | None = None,
) -> Config:
    """The settings without `auto`, which the run's folder has from now on. For the holder of the run's lock.

    A real model's run says what it will take. `repeatable`: nothing that is chosen hangs on the machine. `free` bytes
    are those that the system tells, unless given.
    """
    free = free_memory() if free is None else free
    plan = _plan(config)
    is_auto = config.trainer.micro_batch_tokens == "auto"
    if is_auto:
        is_elsewhere = names_a_gpu(config) or has_gpu()
        tokens = (
            USUAL_PASS if repeatable or is_elsewhere or plan is None or free is None else choose(config, plan, free)
        )
        config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"micro_batch_tokens": tokens})})
        write_run_config(run, config)
        plan = _plan(config)
    if plan is not None and free is not None and _num_weights(config.model.path) >= MIN_WEIGHTS:
        write_event(run, checkpoint, event="memory_estimated", message=_message(config, plan, free, is_auto))
    return config


def choose(config: Config, plan: Estimate, free: float) -> int:
    """Tokens of a pass: a whole group, which needs no second forward pass then, or as many as there is memory for."""
    group = config.trainer.group_size * config.engine.max_new_tokens + PROMPT_TOKENS
    fitting = plan.tokens_within(SHARE * free) // STEP * STEP
    return max(LEAST, min(max(USUAL_PASS, -(-group // STEP) * STEP), fitting))


def free_memory() -> float | None:
    """Bytes that processes can still take, within the limit of a container too; None where the system does not tell."""
    try:
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text("ascii").splitlines())
        free = float(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, LookupError):
        return None
    try:
        limit = float((_CGROUP / "memory.max").read_text("ascii"))
        free = min(free, limit - float((_CGROUP / "memory.current").read_text("ascii")))
    except (OSError, ValueError):  # no limit, which reads `max`, or no such file
        pass
    return max(0.0, free)


def total_memory() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _plan(config: Config) -> Estimate | None:
    shape = shape_of(_model_config(config), _num_weights(config.model.path) or None)
    return None if shape is None else estimate(config, shape, config.trainer.pass_tokens)


def _model_config(config: Config) -> Mapping[str, Any]:
    return read_model_config(model_directory(config.model.path), "model", config.model.trust_remote_code)


def _num_weights(path: str) -> int:
    """Of a folder; 0 for what is not here."""
    return num_weights(Path(model_directory(path)).expanduser()) or 0


def _message(config: Config, plan: Estimate, free: float, was_chosen: bool) -> str:
    searchers = f"each of {plan.num_searchers} Searchers" if plan.num_searchers > 1 else "the Searcher"
    tokens = f"trainer.micro_batch_tokens = {config.trainer.micro_batch_tokens}{' (chosen)' if was_chosen else ''}"
    told = (
        f"about {_gb(plan.total)} of {_gb(free)} that are free: the Trainer {_gb(plan.trainer)} with {tokens}, "
        f"{searchers} {_gb(plan.searcher)}, published weights {_gb(plan.published)}"
    )
    return told if plan.total <= free else f"{told}; that is too much: {LOWER}"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / GIGABYTE:.1f} GB"
