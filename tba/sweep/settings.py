"""What a SPACE.toml says: the sweep's own settings, the fixed settings of all its runs, and the space of the others.

Everything is checked here, before anything starts: the file, and the settings of every run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from tba.config.faults import in_one_line
from tba.config.ready import read_settings
from tba.config.section import Section
from tba.config.settings import Config, embedded_settings, parse_config
from tba.config.text import read_toml
from tba.runs.model_of import with_models_of_runs
from tba.sweep.arms import Arm, Space, grid, nested, random_arms, read_space, resolved, with_variants
from tba.types import TbaError

EMBEDDED = "embedded"
_OWNED = {"run.name": "sweep.name", "run.root": "sweep.root", "run.seed": "sweep.seeds"}
"""Settings of a run that the sweep itself decides, and what to set in their place."""


class SweepSettings(Section):
    """The section `[sweep]` of a SPACE.toml: what is run how often, and what an arm is judged by."""

    name: str = ""
    """Name of the sweep's folder, which is made in `sweep.root`. If empty, it is the name of the SPACE.toml without its
    ending."""
    root: str = "runs"
    """The folder in which the sweep's folder is."""
    base: str = EMBEDDED
    """The configuration that every run starts from: a TOML file, the name of a ready configuration, or
    `embedded` for the settings of the demo."""
    method: Literal["grid", "random"] = "grid"
    """`grid` runs every combination of the values in `[space]`. `random` draws `sweep.num_arms` combinations."""
    num_arms: int | None = Field(None, ge=1)
    """Number of combinations that `sweep.method = "random"` draws."""
    seed: int = Field(0, ge=0)
    """Seed of the combinations that `sweep.method = "random"` draws. More `sweep.num_arms` add arms to the same
    first ones."""
    seeds: tuple[int, ...] = Field((0, 1), min_length=1)
    """The seeds (`run.seed`) that every arm is run with, in this order. Report results with other seeds than those
    that settings were chosen with."""
    metric: str = ""
    """Name of the number in an evaluation that arms are judged by. If empty, it is the number that the task is judged
    by, such as `accuracy`."""
    value: Literal["last", "mean", "best"] = "last"
    """What a run's evaluations count as: the `last` one, the `mean` of all but that of the first weights, or the `best`
    one."""
    minimize: bool = False
    """Whether smaller numbers are better."""
    stop_margin: float | None = Field(None, ge=0)
    """An arm is stopped before its remaining seeds if its mean over the seeds so far is worse than that of the best arm
    by more than this margin. If empty, every arm gets every seed."""
    stop_after: int = Field(1, ge=1)
    """Number of seeds that every arm gets before `sweep.stop_margin` may stop it."""
    parallel: int = Field(1, ge=1)
    """Number of runs that go on at the same time, each a process of its own. With more than one, say how many cores a
    run gets: `run.num_threads`."""

    @model_validator(mode="after")
    def _check(self) -> SweepSettings:
        if self.name and (Path(self.name).name != self.name or self.name in (".", "..")):
            raise ValueError(f"sweep.name = {self.name!r} must be a plain folder name; use sweep.root for the path")
        if (self.method == "random") != (self.num_arms is not None):
            raise ValueError("sweep.num_arms goes with sweep.method = 'random', and only with it: set both or neither")
        if len(set(self.seeds)) != len(self.seeds) or min(self.seeds) < 0:
            raise ValueError(f"sweep.seeds = {list(self.seeds)}: each must be there once, and none below 0")
        return self


class SpaceFile(Section):
    """The sections of a SPACE.toml."""

    sweep: SweepSettings = SweepSettings()
    settings: dict[str, Any] = Field(default_factory=dict)
    space: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep: an arm with a seed, and all its settings."""

    arm: Arm
    seed: int
    config: Config

    @property
    def name(self) -> str:
        return self.config.run.name

    @property
    def folder(self) -> Path:
        return Path(self.config.run.root) / self.config.run.name


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was asked for: checked, and nothing of it has started."""

    settings: SweepSettings
    folder: Path
    fixed: Mapping[str, Any]
    arms: Sequence[Arm]
    runs: Mapping[tuple[str, int], PlannedRun]
    """By the name of the arm and the seed."""
    notes: Sequence[str] = ()
    """Which models were taken where settings name runs: sentences."""


def settings_text() -> str:
    """The settings of `[sweep]`, for the help."""
    lines = [" ".join((SweepSettings.__doc__ or "").split()), ""]
    for name, field in SweepSettings.model_fields.items():
        default = "" if field.default is None else f"  [{json.dumps(field.default)}]"
        lines += [f"  {name}{default}", f"      {' '.join((field.description or '').split())}"]
    return "\n".join(lines) + "\n"


def read_sweep(path: Path) -> Sweep:
    """Read a SPACE.toml. TbaError, in one line, for the first thing that cannot work."""
    given = _read_file(path)
    settings = given.sweep
    fixed, space = nested(given.settings), with_variants(read_space(given.space), given.variants)
    variants = {name: nested(changes) for name, changes in given.variants.items()}
    _check_owned(space, fixed, *variants.values())
    arms = grid(space) if settings.method == "grid" else random_arms(space, settings.num_arms or 1, settings.seed)
    arms = [resolved(arm, variants) for arm in arms]
    folder = Path(settings.root) / (settings.name or path.stem)
    base = embedded_settings() if settings.base == EMBEDDED else read_settings(settings.base)
    runs = {}
    notes: list[str] = []
    for arm in arms:
        for seed in settings.seeds:
            own = {"run": {"name": f"{arm.name}-seed{seed}", "root": str(folder), "seed": seed, "display": "plain"}}
            config, chosen = _config(base, fixed, arm, own)
            runs[arm.name, seed] = PlannedRun(arm, seed, config)
            notes += chosen
    _check_threads(settings, runs)
    return Sweep(settings, folder, fixed, arms, runs, list(dict.fromkeys(notes)))


def _check_owned(space: Space, *layers: Mapping[str, Any]) -> None:
    for name, instead in _OWNED.items():
        section, key = name.split(".")
        sections = [layer[section] for layer in layers if isinstance(layer.get(section), Mapping)]
        if name in space or any(key in given for given in sections):
            raise TbaError(f"{name} is the sweep's own: set {instead} in place of it")


def _read_file(path: Path) -> SpaceFile:
    try:
        return SpaceFile.model_validate(read_toml(path))
    except ValidationError as error:
        known = [f"sweep.{name}" for name in SweepSettings.model_fields]
        raise TbaError(f"{path}: {in_one_line(error, known, 'tba sweep --help')}") from None


def _config(
    base: Mapping[str, Any], fixed: Mapping[str, Any], arm: Arm, own: Mapping[str, Any]
) -> tuple[Config, list[str]]:
    try:
        return with_models_of_runs(parse_config(base, fixed, arm.changes, own))
    except TbaError as error:
        raise TbaError(f"{arm.name}: {error}") from None


def _check_threads(settings: SweepSettings, runs: Mapping[tuple[str, int], PlannedRun]) -> None:
    if settings.parallel > 1 and any(run.config.run.num_threads == 0 for run in runs.values()):
        raise TbaError(
            f"sweep.parallel = {settings.parallel} with run.num_threads = 0 would give each of the runs all cores: "
            "set run.num_threads in [settings]"
        )
