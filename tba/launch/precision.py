"""`auto` of `engine.precision` and `model.precision` becomes a precision, once per run and before its processes start.

A process of its own measures products of the model's shapes, because this one loads no torch. What was chosen stands in
the run's settings, so that every Searcher and every resume has the same; `precision.json` says on which processor.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tba.config.settings import Config
from tba.launch.meeting import num_weights
from tba.launch.processes import redirect_output
from tba.learn.checkpoint import Checkpoint
from tba.policy.names import EMBEDDED_MODEL
from tba.rewards.process import without_ctrl_c
from tba.runs.metrics import Metrics
from tba.runs.run_config import write_run_config

PRECISION = "precision.json"
"""In the folder of a run whose `auto` was settled by a measurement: what was chosen, from what, and where."""
MIN_WEIGHTS = 10_000_000
"""Smaller models stay in float32 without a measurement, which would take longer than to load them. Layers 128 wide were
0.8 times as fast in bfloat16 with 16 rows, on a processor where layers 512 wide were 1.7 times as fast."""
CLEARLY_FASTER = 1.15
"""bfloat16 must be so many times as fast as float32, or float32 is kept: products are only a part of a step."""
MUCH_FASTER = 2.0
"""int8 must be so many times as fast as the better of the others: with SmolLM2-135M its log-probabilities are twelve
times as far from the policy's as those of bfloat16."""
_LIMIT_SECONDS = 120.0
_USUAL_ROWS = 128
_INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")
"""Those that decide how fast products are, in each precision."""
_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Speeds:
    """Seconds that the products of a step take, by precision; float32 alone if nothing can be gained."""

    generation: Mapping[str, float]
    training: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    precision: str
    why: str


def choose(seconds: Mapping[str, float]) -> Choice:
    """The precision to take, given what the same products took in each: a coarser one only where it pays."""
    best = "float32"
    for coarser, factor in (("bfloat16", CLEARLY_FASTER), ("int8", MUCH_FASTER)):
        if coarser in seconds and seconds[best] >= factor * seconds[coarser]:
            best = coarser
    times = {name: f"{seconds['float32'] / spent:.1f}" for name, spent in seconds.items() if name != "float32"}
    if not times:
        return Choice(best, "there is a GPU, or the model is too small to gain,")
    if best == "float32":
        return Choice(best, " and ".join(f"{name} is {factor} times as fast" for name, factor in times.items()))
    others = "".join(f", {name} {factor}" for name, factor in times.items() if name != best)
    return Choice(best, f"{times[best]} times float32{others}")


def settle(
    config: Config,
    run: Path,
    checkpoint: Checkpoint | None,
    *,
    repeatable: bool = False,
    tell: Callable[[str], None] = lambda line: None,
    measure: Callable[[Config, Path], Speeds | None] | None = None,
) -> Config:
    """The settings without `auto`, which the run's folder has from now on. For the holder of the run's lock.

    `repeatable`: nothing is measured, since numbers that follow from the seed must not hang on a processor's speed.
    """
    config, asked_for = _without_what_is_not_measured(config), config
    if "auto" not in (config.engine.precision, config.model.precision):
        if config != asked_for:
            write_run_config(run, config)
        _tell_of_another_processor(config, run, checkpoint)
        return config
    if repeatable or _is_small(config.model.path) or names_a_gpu(config):
        settled = _with(config, "float32", "float32")
        write_run_config(run, settled)
        return settled
    tell("measuring how fast this processor is in each precision, with products of the model's shapes …")
    begun = time.monotonic()
    speeds = (measure or measured)(config, run)
    where = f"on this processor ({processor()}), measured in {time.monotonic() - begun:.1f} s"
    failed = Choice("float32", f"products could not be measured (see {run / 'logs' / 'precision.log'})")
    engine, model = (choose(speeds.generation), choose(speeds.training)) if speeds else (failed, failed)
    settled = _with(config, engine.precision, model.precision)
    write_run_config(run, settled)
    asked = {"engine.precision": (config.engine.precision, engine), "model.precision": (config.model.precision, model)}
    chosen = {name: choice for name, (setting, choice) in asked.items() if setting == "auto"}
    _record(run, chosen, speeds)
    for name, choice in chosen.items():
        message = f"{name} = {choice.precision}: {choice.why} {where}"
        write_event(
            run, checkpoint, event="precision_chosen", setting=name, precision=choice.precision, message=message
        )
    return settled


def _without_what_is_not_measured(config: Config) -> Config:
    """Layers that are kept in bfloat16 are not packed, and compute in bfloat16 whatever is fast."""
    kept = config.engine.dtype
    return config if kept == "float32" else _with(config, kept, config.model.precision)


def measured(config: Config, run: Path) -> Speeds | None:
    """Speeds on this processor, measured by a process of its own; None if it did not succeed."""
    receive, send = _spawn.Pipe(duplex=False)
    num_rows = min(_USUAL_ROWS, config.searcher.prompts_per_batch * config.searcher.num_responses)
    arguments = (send, config.model.path, config.model.trust_remote_code, num_rows, run / "logs" / "precision.log")
    process = _spawn.Process(target=_measure, args=arguments, name="precision", daemon=True)
    with without_ctrl_c():
        process.start()
    send.close()
    try:
        return receive.recv() if receive.poll(_LIMIT_SECONDS) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def _measure(send: Connection, path: str, trust_remote_code: bool, num_rows: int, log: Path) -> None:
    redirect_output(log)
    import torch

    from tba.launch.product_speeds import generation_seconds, matrices, training_seconds

    torch.set_num_threads(1)
    found = matrices(path, trust_remote_code=trust_remote_code)
    if torch.cuda.is_available() or sum(matrix.num_weights for matrix in found) < MIN_WEIGHTS:
        send.send(Speeds({"float32": 0.0}, {"float32": 0.0}))
    else:
        send.send(Speeds(generation_seconds(found, num_rows=num_rows), training_seconds(found)))


def processor() -> str:
    """The name of this machine's processor, and which of the instructions that matter here it has."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    flags = fields.get("flags", "").split()
    return " ".join([fields.get("model name", platform.machine()), *(kind for kind in _INSTRUCTIONS if kind in flags)])


def names_a_gpu(config: Config) -> bool:
    """Precisions are measured for processors; what is chosen holds for Learner and Searchers together."""
    return any(device.startswith("cuda") for device in (config.model.device, *config.engine.device))


def _is_small(path: str) -> bool:
    weights = num_weights(Path(path))
    return path == EMBEDDED_MODEL or (weights is not None and weights < MIN_WEIGHTS)


def _with(config: Config, engine: str, model: str) -> Config:
    """Settings whose `auto` is replaced by these."""
    if config.engine.precision == "auto":
        config = config.model_copy(update={"engine": config.engine.model_copy(update={"precision": engine})})
    if config.model.precision == "auto":
        config = config.model_copy(update={"model": config.model.model_copy(update={"precision": model})})
    return config


def _record(run: Path, chosen: Mapping[str, Choice], speeds: Speeds | None) -> None:
    record = {
        "processor": processor(),
        "chosen": {name: asdict(choice) for name, choice in chosen.items()},
        "seconds": asdict(speeds) if speeds else None,
    }
    (run / PRECISION).write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def _tell_of_another_processor(config: Config, run: Path, checkpoint: Checkpoint | None) -> None:
    try:
        before = json.loads((run / PRECISION).read_text("utf-8"))
        where, names = str(before["processor"]), list(before["chosen"])
    except (OSError, ValueError, LookupError, TypeError):
        return
    if where == processor():
        return
    kept = {"engine.precision": config.engine.precision, "model.precision": config.model.precision}
    settings = " and ".join(f"{name} = {kept[name]}" for name in names if name in kept)
    again = " ".join(f"--{name} auto" for name in names)
    message = (
        f"{settings} was chosen on another processor ({where}) and is kept on this one ({processor()}); "
        f"resume with {again} to measure again"
    )
    write_event(run, checkpoint, event="processor_changed", message=message)


def write_event(run: Path, checkpoint: Checkpoint | None, **values: Any) -> None:
    """An event of the time before the processes of a run start."""
    metrics = Metrics(run, elapsed=checkpoint.state()["elapsed"] if checkpoint else 0.0)
    metrics.write("event", checkpoint.step if checkpoint else 0, values)
    metrics.close()
