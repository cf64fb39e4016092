"""Time to the same held-out accuracy: ours and TRL's GRPO, from the same weights on the same problems."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arrival import NEVER, Arrival, arrival_of
from benchmarks.models import smollm2_path
from benchmarks.peers import trl_run
from benchmarks.report import Row, at_least, ratio_of
from benchmarks.vllm import vllm_python
from tba.api import start
from tba.config.settings import load_config
from tba.runs.metrics import read_metrics
from tba.types import TbaError

Sections = dict[str, dict[str, Any]]
EVALUATE_EVERY = 2
"""Steps, of ours and of TRL's."""


@dataclass(frozen=True)
class Race:
    name: str
    sections: Sections
    """Model, task and engine, the same for both; what else there is concerns ours only."""
    target: float
    """Held-out accuracy both have to reach."""
    ours: Mapping[str, Any]
    """The `trainer` section that suits us, with enough steps."""
    theirs: Mapping[str, Any]
    """Options of the peer that suit TRL."""


# The same optimizer for both, the best found for either. Ours: rates of 1e-4 to 8e-4, constant and falling, momenta of
# 0 to 0.9, 8 to 16 groups a step, asynchronous runs too. TRL: 1e-4 to 5e-4, momenta of 0.5 and 0.9, 8 or 16 prompts.
_OPTIMIZER = {"learning_rate": 5e-4, "schedule": "linear", "adam_beta1": 0.5}


def embedded(difficulty: str, max_new_tokens: int, target: float, num_steps: int) -> Race:
    """The model that comes with the package."""
    return Race(
        f"embedded model, {difficulty} chains",
        {
            "task": {"difficulty": difficulty},
            "engine": {"max_new_tokens": max_new_tokens},
            "searcher": {"num_searchers": 2},
            "buffer": {"recent_fraction": 1.0},
        },
        target,
        {**_OPTIMIZER, "num_steps": num_steps, "sync_period": 1, "synchronous": True},
        {**_OPTIMIZER, "max_steps": num_steps, "num_prompts": 16},
    )


EASY = embedded("easy", 40, 0.95, 10)
MEDIUM = embedded("medium", 64, 0.78, 16)


def addition(model: str) -> Race:
    """A real pretrained model, whose samples are costly: what they cost is most of the time."""
    sections: Sections = {
        "model": {"path": model},
        "task": {"kind": "addition"},
        "engine": {"max_new_tokens": 16, "temperature": 0.7},
        "searcher": {"num_responses": 16, "skip_equal_rewards": True},
        "objective": {"beta": 0.02},
        "evaluation": {"num_prompts": 128},
    }
    return Race(
        "SmolLM2-135M-Instruct, addition",
        sections,
        0.45,
        # The best found. Ours: synchronous with 2 and 4 groups a step, asynchronous with 2, 3, 4, 8 and 10, at rates of
        # 1e-5 to 5e-5. Theirs: 2, 4 and 8 prompts, at 1e-5, 1.5e-5, 2.5e-5 and 4e-5, with which nobody learns.
        {"learning_rate": 2e-5, "num_groups": 4, "sync_period": 1, "synchronous": True, "num_steps": 12},
        {"learning_rate": 2.5e-5, "num_prompts": 4, "max_seconds": 300},
    )


def run(full: bool) -> Iterator[Row]:
    """The quick form leaves out the real model, whose race takes most of an hour."""
    python = vllm_python() if full else ""
    pretrained = addition(smollm2_path()) if full else None
    for race in (EASY, MEDIUM):
        yield _embedded(race, 5 if full else 1)
    if pretrained is not None:
        yield from _pretrained(pretrained, python, 2)


def _embedded(race: Race, repeats: int) -> Row:
    """K = 16 and both cores for both, each with the settings that suit it.

    Time is counted from when the first answers are asked for, so neither pays for its start. Neither pays for
    evaluation: ours is evaluated afterwards, from its checkpoints, and TRL's clock stands still.
    """
    return _row(race, "TRL's GRPO", *_in_turn(race, _arrival_of, repeats))


def _pretrained(race: Race, python: str, repeats: int) -> Iterator[Row]:
    """As above, but checkpoints of a real model are large: a run evaluates its own weights, every second step as TRL's
    does, in turn with the rest. TRL with vLLM, whose steps take minutes here, runs once."""
    ours, theirs = _in_turn(race, _arrival_of_pretrained, repeats)
    yield _row(race, "TRL's GRPO, transformers", ours, theirs)
    with_vllm = _trl_arrival_of(race, 0, python, "--vllm")
    yield _row(race, "TRL's GRPO, vLLM in its process", ours[:1], [with_vllm])


def _in_turn(
    race: Race, arrival_of: Callable[[Race, int], Arrival], repeats: int
) -> tuple[list[Arrival], list[Arrival]]:
    """Ours and theirs for each seed, one run after the other."""
    ours, theirs = [], []
    for seed in range(repeats):
        ours.append(arrival_of(race, seed))
        theirs.append(_trl_arrival_of(race, seed, sys.executable))
        _say(f"seed {seed}, seconds: {ours[-1]}, TRL {theirs[-1]}")
    return ours, theirs


def _row(race: Race, peer: str, ours: Sequence[Arrival], theirs: Sequence[Arrival]) -> Row:
    """From the arrivals of ours and of theirs, for each seed. `>` marks a run that was ended before it arrived."""
    mine, other = ([arrival.seconds for arrival in arrivals] for arrivals in (ours, theirs))
    ratio, spread = ratio_of(other, mine)
    return at_least(
        4.0,
        f"time to held-out accuracy {race.target}, {race.name}, K=16, both cores",
        f"{np.median(mine):.1f} s",
        f"{peer}, {np.median(other):.1f} s",
        ratio,
        spread,
        f"seconds by seed: {', '.join(map(str, ours))} against {', '.join(map(str, theirs))}",
    )


def _say(text: str) -> None:
    """A race takes minutes: say how far it is."""
    Console(highlight=False).print(f"    {text}")


def _arrival_of(race: Race, seed: int) -> Arrival:
    return arrival_of({**race.sections, "trainer": race.ours}, race.target, seed, EVALUATE_EVERY)


def _arrival_of_pretrained(race: Race, seed: int) -> Arrival:
    """From the end of the first evaluation to the step that made weights at the target, less evaluations between."""
    with tempfile.TemporaryDirectory() as root:
        sections = {
            **race.sections,
            "run": {"seed": seed, "root": root, "name": "race", "display": "none", "launcher": "inline"},
            "trainer": race.ours,
            "evaluation": {**race.sections["evaluation"], "period": EVALUATE_EVERY},
        }
        records = read_metrics(start(load_config(None, sections)).run)
    evaluations = {r["step"]: r["accuracy"] for r in records if r["kind"] == "eval"}
    _say(f"seed {seed}: accuracy after steps {evaluations}")
    reached = [step for step, accuracy in evaluations.items() if accuracy >= race.target]
    if not reached:
        return NEVER
    first = next(r["time"] for r in records if r["kind"] == "eval")
    place, last = next((i, r) for i, r in enumerate(records) if r["kind"] == "train" and r["step"] == reached[0])
    evaluating = [r["seconds/evaluate"] for r in records[:place] if r["kind"] == "search"]
    return Arrival(float(last["time"] - first - (evaluating[-1] - evaluating[0])))


def _trl_arrival_of(race: Race, seed: int, python: str, *more_flags: str) -> Arrival:
    sections = json.dumps({**race.sections, "run": {"seed": seed}})
    options = {"sections": sections, "target": race.target, "evaluate_every": EVALUATE_EVERY, **race.theirs}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    command = [python, "-m", trl_run.__name__, *flags, *more_flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"')]
    if done.returncode != 0 or not lines:
        reason = done.stderr.strip().splitlines()
        raise TbaError(f"TRL's run failed: {reason[-1] if reason else 'no output'}")
    result: dict[str, Any] = json.loads(lines[-1])
    if not result["reached"]:
        _say(f"seed {seed}: TRL's run was ended at accuracy {result['accuracy']:.3f} after {result['seconds']:.0f} s")
    return Arrival(float(result["seconds"]), reached=result["reached"])
