"""What this machine can do at best: one core's matrix product and one core's memory copy."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from tba.launch.precision import processor


@cache
def peak_gflops() -> float:
    """One core, float32, 1024 × 1024 matrices: the best of several."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / _best(lambda: torch.mm(a, b)) / 1e9


@cache
def copy_gigabytes() -> float:
    """One core, bytes read and written a second by a copy far larger than the caches."""
    source = torch.ones(2**26)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _best(lambda: target.copy_(source)) / 1e9


def _best(work: Callable[[], object], repeats: int = 8) -> float:
    torch.set_num_threads(1)
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def description() -> str:
    import transformers

    return (
        f"{len(os.sched_getaffinity(0))} cores, {processor()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, transformers {transformers.__version__}, {time.strftime('%Y-%m-%d')}; one core: "
        f"{peak_gflops():.0f} GFLOP/s (float32 product of 1024 × 1024 matrices), "
        f"{copy_gigabytes():.1f} GB/s (copy, read and written)"
    )


@contextmanager
def one_core() -> Iterator[int]:
    """This process, and those it starts, on one core and one thread."""
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    core = max(before)
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)
