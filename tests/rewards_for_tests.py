"""Reward functions as users write them, good and bad. Named by path in tests and run in reward processes."""

from __future__ import annotations

import asyncio
import functools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()


def spec(name: str) -> str:
    return f"{HERE}:{name}"


def length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def ones(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0 for _ in completions]


def act(completions: list[str], act: list[str], **kwargs: Any) -> list[Any]:
    """Do what the column says, with the first completion as its argument; else the completions' lengths."""
    if act[0] == "return":
        return length(completions)
    return ACTS[act[0]](completions)


def _hang(completions: list[str]) -> list[Any]:
    threading.Event().wait()
    return []


def _hang_with_lock_held(completions: list[str]) -> list[Any]:
    print(os.getpid(), flush=True)
    re.match(r"(a+)+$", "a" * 64 + "b")
    return []


def _hang_with_subprocess(completions: list[str]) -> list[Any]:
    """Both this process and the one it starts hold the named pipe open while they live."""
    with open(completions[0], "w") as pipe:
        subprocess.run([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=pipe)
        _hang(completions)
    return []


def _exit(completions: list[str]) -> list[Any]:
    os._exit(3)


def _segfault(completions: list[str]) -> list[Any]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def _raise(completions: list[str]) -> list[Any]:
    raise ValueError("no\nreward")


def _interrupt(completions: list[str]) -> list[Any]:
    os.kill(os.getpid(), signal.SIGINT)
    return length(completions)


ACTS: dict[str, Any] = {
    "hang": _hang,
    "hang_with_lock_held": _hang_with_lock_held,
    "hang_with_subprocess": _hang_with_subprocess,
    "exit": _exit,
    "segfault": _segfault,
    "raise": _raise,
    "sys_exit": lambda completions: sys.exit(4),
    "interrupt": _interrupt,
    "short": lambda completions: [1.0],
    "number": lambda completions: 1.0,
    "nothing": lambda completions: None,
    "nan": lambda completions: [math.nan, *length(completions)[1:]],
    "inf": lambda completions: [math.inf, *length(completions)[1:]],
    "text": lambda completions: ["1", *length(completions)[1:]],
    "none": lambda completions: [None] * len(completions),
    "none_first": lambda completions: [None, *length(completions)[1:]],
    "scalars": lambda completions: [True, np.float32(2), np.int64(3)][: len(completions)],
    "array": lambda completions: np.arange(len(completions)),
    "print": lambda completions: [print("noise") or 1.0 for _ in completions],
    "huge": lambda completions: [1e308 for _ in completions],
    "edit": lambda completions: [completions.pop() and 1.0 for _ in range(len(completions))],
}


async def asynchronous(completions: list[str], **kwargs: Any) -> list[float]:
    """Fails if two calls run in different event loops."""
    global _loop
    await asyncio.sleep(0)
    _loop = _loop or asyncio.get_running_loop()
    assert _loop is asyncio.get_running_loop()
    return length(completions)


_loop: asyncio.AbstractEventLoop | None = None


def strict(completions: list[Any], answer: list[Any]) -> list[float]:
    """Takes no other columns."""
    return [float(completion == truth) for completion, truth in zip(completions, answer, strict=True)]


def echo(**kwargs: Any) -> list[float]:
    """Checks the whole of TRL's convention for a conversational request."""
    assert kwargs["prompts"] == ["question"] * 2
    assert kwargs["completions"] == [[{"role": "assistant", "content": text}] for text in ("a", "bb")]
    assert kwargs["completion_ids"] == [[1], [2, 3]]
    assert kwargs["finished"] == [True, False]
    assert kwargs["level"] == [7, 7]
    return [1.0, 2.0]


class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        return [self.weight * value for value in length(completions)]


def scaled(completions: list[str], scale: float = 1.0, **kwargs: Any) -> list[float]:
    return [scale * value for value in length(completions)]


doubled = functools.partial(scaled, scale=2.0)
tripled = Weighted(3.0)
not_a_function = 5


def meet(completions: list[str], folder: list[str], guests: list[int], **kwargs: Any) -> list[float]:
    """Waits until as many calls as there are guests have come, each in a process of its own."""
    Path(folder[0], str(os.getpid())).touch()
    while len(list(Path(folder[0]).iterdir())) < guests[0]:
        time.sleep(0.01)
    time.sleep(0.3)
    return length(completions)


def compute(completions: list[str], **kwargs: Any) -> list[float]:
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    return length(completions)
