"""Settings of a run as such: where it lives, how it is started, what it measures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tba.config.section import Section


class RunConfig(Section):
    """Where the run lives and how its processes are started."""

    name: str = ""
    """Name of the run's folder, which is made in `run.root`. If empty, it is the task's name and the time of the
    start."""
    root: str = "runs"
    """The folder in which the folders of all runs are."""
    seed: int = Field(0, ge=0)
    """Seed of the order of prompts, of sampled responses and of draws from the buffer. Each Searcher adds its own
    index, so that no two explore alike."""
    launcher: Literal["local", "inline"] = "local"
    """`local` runs a process for each Searcher (rollout worker) and one for the Trainer. `inline` runs all of them in
    turn in one process, and gives the same numbers each time."""
    num_threads: int = Field(0, ge=0)
    """Compute threads of each process. With 0, the cores are shared out over the processes that work at the same
    time."""
    max_restarts: int = Field(10, ge=0)
    """How many times Searchers that died are started again before the run gives up."""
    stuck_seconds: float = Field(600.0, ge=0)
    """Seconds without a sign of life after which a process that is still there counts as stuck. A stuck Searcher is
    killed and replaced, as one that died; a stuck Trainer is killed and the run ends. Every pass through a model, and
    every wait for rewards or for another process, is a sign of life; give more seconds than the longest pass takes.
    With 0, no process is ever taken for stuck."""
    end_seconds: float = Field(3600.0, gt=0)
    """Seconds that Searchers have, after the last training step, to evaluate the last weights and to end. Those that
    need longer are killed, and their last evaluation is missing: `tba eval` makes up for it."""
    display: Literal["auto", "live", "plain", "none"] = "auto"
    """What is shown while the run goes on: a `live` panel, which needs a terminal; `plain` lines; or `none`. `auto`
    shows the panel where there is a terminal, and lines elsewhere."""


class MetricsConfig(Section):
    """Which metrics are measured, and where they go besides `metrics.jsonl`, which is always written."""

    grad_cosine: bool = True
    """Whether every step measures the cosine between its gradient and that of the step before (`grad_cosine`). It is
    estimated from 16,384 weights that are chosen once, which takes 64 KB and next to no time."""
    samples: int = Field(4, ge=0)
    """Number of responses, with prompts and rewards, that are shown at a time: one of them in the panel, all of them as
    text in TensorBoard and as a table in Weights & Biases and in trackio. It happens at most about 100 times in a run.
    With 0, none are shown; `tba samples` shows the responses of any run."""
    tensorboard: bool = True
    """Whether to write TensorBoard events into the folder of the run."""
    wandb: bool = False
    """Whether to send the metrics to Weights & Biases, which needs the `wandb` extra."""
    trackio: bool = False
    """Whether to send the metrics to trackio, which needs the `trackio` extra."""
