"""What a batch draw costs as the buffer grows: `python -m benchmarks draws`.

Buffers of a series are drawn from in turn, a few draws at a time, since absolute times follow the machine's load:
the ratio is what to read.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from benchmarks.report import Row, at_most
from tba.buffer.replay import ReplayBuffer
from tba.buffer.sampling import draw
from tba.types import Group, Prompt, Response, Trajectory, Version

NUM_GROUPS, GROUP_SIZE = 8, 16
TURNS_PER_REPEAT, DRAWS_PER_TURN = 20, 10
PER_PROMPT = 100


def run(full: bool) -> list[Row]:
    """Microseconds per batch draw; the ratio is to the smallest buffer of a series."""
    repeats = 9 if full else 5
    whole = {10_000: 100, 1_000_000: 10_000}
    one = {1: 1, 1_000: 1, 100_000: 1}
    series = [_series(f"whole buffer, m={m}", whole, m, repeats) for m in (0.0, 0.5)]
    series.append(_series("one prompt, m=0", one, 0.0, repeats))
    return [_row(entry, entries[0]) for entries in series for entry in entries[1:]]


def _row(entry: dict[str, Any], first: dict[str, Any]) -> Row:
    return at_most(
        2.0,
        f"batch draw, {entry['series']}, {entry['num_trajectories']:,} trajectories",
        f"{entry['microseconds']:.0f} µs",
        f"{first['num_trajectories']:,} trajectories, {first['microseconds']:.0f} µs",
        entry["ratio"],
        f"{entry['ratio_min']:.2f} to {entry['ratio_max']:.2f}",
    )


def _series(name: str, sizes: dict[int, int], recent_fraction: float, repeats: int) -> list[dict[str, Any]]:
    """`sizes` maps the number of trajectories to the number of prompts they are spread over."""
    buffers = {num: _filled(num, num_prompts) for num, num_prompts in sizes.items()}
    rng = np.random.default_rng(0)
    _time_draws(buffers, recent_fraction, rng)  # the first draw sums up a long list
    rounds = [_time_draws(buffers, recent_fraction, rng) for _ in range(repeats)]
    smallest = min(sizes)
    return [
        {
            "series": name,
            "num_trajectories": num,
            "microseconds": statistics.median(times[num] for times in rounds),
            **_summary("ratio", [times[num] / times[smallest] for times in rounds]),
        }
        for num in sizes
    ]


def _summary(name: str, values: list[float]) -> dict[str, float]:
    return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}


def _time_draws(buffers: dict[int, ReplayBuffer], recent_fraction: float, rng: np.random.Generator) -> dict[int, float]:
    """Microseconds per batch draw from each buffer."""
    seconds = dict.fromkeys(buffers, 0.0)
    for _ in range(TURNS_PER_REPEAT):
        for num, buffer in buffers.items():
            start = time.perf_counter()
            for _ in range(DRAWS_PER_TURN):
                draw(
                    buffer,
                    num_groups=NUM_GROUPS,
                    group_size=GROUP_SIZE,
                    recent_fraction=recent_fraction,
                    uniform_fraction=0.5,
                    inverse_temperature=1.0,
                    rng=rng,
                )
            seconds[num] += time.perf_counter() - start
    return {num: 1e6 * total / (TURNS_PER_REPEAT * DRAWS_PER_TURN) for num, total in seconds.items()}


def _filled(num_trajectories: int, num_prompts: int) -> ReplayBuffer:
    """A full buffer, the last hundredth of which came with the latest merge. Responses differ, and share memory."""
    per_prompt = num_trajectories // num_prompts
    tokens, logprobs = np.arange(per_prompt + 40, dtype=np.int32), np.zeros(40, np.float32)
    responses = [
        Response(tokens[i : i + 40], logprobs, ((Version(0, 0), 40),), "text", True) for i in range(per_prompt)
    ]
    rng = np.random.default_rng(1)
    buffer = ReplayBuffer(num_trajectories, max(PER_PROMPT, num_trajectories // num_prompts))
    groups = []
    for index in range(num_prompts):
        rewards = rng.normal(size=per_prompt).tolist()
        scored = zip(responses, rewards, strict=True)
        trajectories = tuple(Trajectory(response, reward, (reward,), logprobs) for response, reward in scored)
        groups.append(Group(Prompt(str(index), "prompt", (1, 2, 3)), trajectories, "benchmark", index))
    num_recent = max(1, num_prompts // 100)
    buffer.extend(groups[:-num_recent])
    buffer.extend(groups[-num_recent:])
    return buffer
