"""Save and find checkpoints: written aside and renamed, so one is never half there, and checked when read.

`checkpoints/step-000100/model/` is a plain Hugging Face directory; `…/state/` is what resuming needs. Tensors are
safetensors, the rest is JSON: nothing here can run code when it is loaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from tba.types import TbaError

CHECKPOINTS = "checkpoints"
BEST = "best"
"""Beside them: the best model that was evaluated (`runs/best.py`), which is no checkpoint to resume from."""
_STEP = re.compile(r"step-\d+")
_MANIFEST = "state/manifest.json"
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Checkpoint:
    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.removeprefix("step-"))

    @property
    def model(self) -> Path:
        return self.path / "model"

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.path / "state/state.json").read_text("utf-8"))
        return state

    def damage(self) -> str | None:
        """What is wrong with it, or None if every file is there with the bytes that were written."""
        try:
            manifest = json.loads((self.path / _MANIFEST).read_text("utf-8"))
        except (OSError, ValueError):
            return f"{_MANIFEST} is missing or unreadable"
        if not isinstance(manifest, dict) or not manifest:
            return f"{_MANIFEST} lists no files"
        for name, digest in manifest.items():
            try:
                found = _digest(self.path / name)
            except OSError:
                return f"{name} is missing"
            if found != digest:
                return f"{name} does not have the bytes that were written"
        return None


def save_checkpoint(
    run: Path,
    step: int,
    *,
    save: Callable[[Path], None],
    state: Mapping[str, Any],
    keep_last: int,
    keep_interval: int | None = None,
) -> Checkpoint:
    """Write a checkpoint whole or not at all, then remove those beyond the newest `keep_last`, but for the first of
    every `keep_interval` steps.

    `save` writes the Learner's part into a folder; `state` is what else a resume needs, as JSON.
    """
    from safetensors import SafetensorError

    folder = run / CHECKPOINTS
    target, partial = folder / f"step-{step:06d}", folder / f".step-{step:06d}.partial"
    for leftover in folder.glob(".step-*"):  # of a process that was killed here
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        (partial / "state").mkdir(parents=True)
        save(partial)
        (partial / "state/state.json").write_text(json.dumps(state), "utf-8")
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        manifest = {str(path.relative_to(partial)): _digest(path) for path in files}
        (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        for path in [*files, partial / _MANIFEST]:
            _flush(path)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # a full disk gets its space back
        number = re.search(r"\(os error (\d+)\)", str(error)) if isinstance(error, SafetensorError) else None
        if number:  # safetensors wraps what the system said; callers know a full disk by its OSError
            raise OSError(int(number[1]), str(error)) from error
        raise
    replaced = folder / f".step-{step:06d}.replaced"
    if target.exists():
        os.replace(target, replaced)
    os.replace(partial, target)
    _flush(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    # Those of later steps were made before the run went back to an earlier checkpoint: it is not theirs any more.
    found = list_checkpoints(run)
    num_past = sum(checkpoint.step <= step for checkpoint in found)
    kept = _first_of_intervals(found[:num_past], keep_interval)
    for old in found[: max(0, num_past - keep_last)] + found[num_past:]:
        if old not in kept:
            shutil.rmtree(old.path, ignore_errors=True)
    return Checkpoint(target)


def _first_of_intervals(found: Sequence[Checkpoint], interval: int | None) -> list[Checkpoint]:
    """For each multiple of the interval, the first checkpoint at or after it: they are written at syncs, which need not
    fall on it. What is first in its interval stays first, so it is kept for good."""
    if interval is None:
        return []
    first: dict[int, Checkpoint] = {}
    for checkpoint in found:
        first.setdefault(checkpoint.step // interval, checkpoint)
    return [checkpoint for number, checkpoint in first.items() if number]


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """Complete checkpoints of a run, oldest first (a half-written one has another name)."""
    paths = [path for path in (run / CHECKPOINTS).glob("step-*") if _STEP.fullmatch(path.name)]
    return sorted((Checkpoint(path) for path in paths), key=lambda checkpoint: checkpoint.step)


def run_of_model(model: Path) -> Path | None:
    """The run that a model is of, which is `RUN/checkpoints/step-N/model`, or `RUN/best/step-N/model`, and no other
    place below RUN."""
    path = model.resolve()
    if len(path.parents) < 3 or path.name != "model" or not _STEP.fullmatch(path.parent.name) or not path.is_dir():
        return None
    run = path.parents[2]
    return run if path.parents[1].name in (CHECKPOINTS, BEST) and (run / "config.toml").is_file() else None


def run_to_resume(path: Path) -> Path:
    """The run that `--resume PATH` means, by a look that changes nothing. TbaError if it has nothing to resume from."""
    if _is_checkpoint(path):
        run = path.parent.parent
        if not path.is_dir():
            raise TbaError(f"there is no checkpoint at {path}")
    else:
        run = path
    if not (run / "config.toml").is_file():
        raise TbaError(f"{run} is not a run: there is no config.toml in it")
    if not list_checkpoints(run):
        raise TbaError(f"{run} has no checkpoint to resume from: start it again with --overwrite")
    return run


def find_checkpoint(path: Path) -> tuple[Path, Checkpoint]:
    """The run and the checkpoint that `--resume PATH` means: a run's newest, or the one named. Checked for damage."""
    run = run_to_resume(path)
    wanted = Checkpoint(path) if _is_checkpoint(path) else list_checkpoints(run)[-1]
    damage = wanted.damage()
    if damage is not None:
        raise TbaError(f"checkpoint {wanted.path} is damaged ({damage}); {_offer(run, wanted)}")
    return run, wanted


def _is_checkpoint(path: Path) -> bool:
    return bool(_STEP.fullmatch(path.name)) and path.parent.name == CHECKPOINTS


def _offer(run: Path, damaged: Checkpoint) -> str:
    for other in reversed(list_checkpoints(run)):
        if other.path != damaged.path and other.damage() is None:
            return f"the newest sound one is {other.path}: tba train --resume {other.path}"
    return "there is no other sound one in this run"


def _digest(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
