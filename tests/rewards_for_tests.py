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
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from tba.rewards.scoring import Scores
from tba.rewards.serve import Scored

HERE = Path(__file__).resolve()


def spec(name: str) -> str:
    return f"{HERE}:{name}"


def length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def checksum(completions: list[str], **kwargs: Any) -> list[float]:
    """Another number for nearly every text, from 0 to 1."""
    return [zlib.crc32(completion.encode()) / 2**32 for completion in completions]


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
    assert kwargs["texts"] == ["a", "bb"]
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
    return length(completions)


async def meet_inside(
    completions: list[str], folder: list[str], guests: list[int], act: list[str], **kwargs: Any
) -> list[float]:
    """Waits until as many calls as there are guests are under way in this process, or does what the column says."""
    global _num_inside
    Path(folder[0], str(os.getpid())).touch()
    if act[0] == "hang":
        await asyncio.Event().wait()
    if act[0] != "return":
        await asyncio.sleep(0)
        return {"exit": _exit, "block": _hang, "cancel": _cancel}[act[0]](completions)
    _num_inside += 1
    while _num_inside < guests[0]:
        await asyncio.sleep(0.01)
    return length(completions)


_num_inside = 0


def _cancel(completions: list[str]) -> list[Any]:
    raise asyncio.CancelledError


def runs_a_loop_itself(completions: list[str], **kwargs: Any) -> list[float]:
    return asyncio.run(asynchronous_length(completions))


async def asynchronous_length(completions: list[str]) -> list[float]:
    await asyncio.sleep(0)
    return length(completions)


async def act_async(completions: list[str], act: list[str], **kwargs: Any) -> list[Any]:
    await asyncio.sleep(0)
    values = globals()["act"](completions, act)
    await asyncio.sleep(0)
    return values


def _fork_and_return(completions: list[str]) -> list[Any]:
    """As a careless function might: parent and copy both go on."""
    os.fork()
    return length(completions)


def _fork_and_raise(completions: list[str]) -> list[Any]:
    if os.fork() == 0:
        raise ValueError("from the copy")
    return length(completions)


def _fork_and_exit(completions: list[str]) -> list[Any]:
    if os.fork() == 0:
        sys.exit(0)
    return length(completions)


def _answer_for_another(completions: list[str]) -> list[Any]:
    """Answers, in place of the real server, a request with a number that nobody has asked."""
    _pipe().send(Scored(1_000_000, Scores((9.0,), ((9.0,),), ())))
    return length(completions)


def _stop_after(share: float, completions: list[str]) -> list[Any]:
    """Stops its process for good when this share of the answer has been sent."""
    send = Connection._send

    def send_and_stop(self: Any, data: Any, *rest: Any) -> None:
        send(self, bytes(data)[: int(share * len(data))], *rest)
        os.kill(os.getpid(), signal.SIGSTOP)

    Connection._send = send_and_stop  # type: ignore[method-assign]
    return length(completions)


def _pipe() -> Any:
    """The connection that the process serves, found among the frames below this one."""
    frame: Any = sys._getframe()
    while "connection" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["connection"]


ACTS |= {
    "fork_and_return": _fork_and_return,
    "fork_and_raise": _fork_and_raise,
    "fork_and_exit": _fork_and_exit,
    "answer_for_another": _answer_for_another,
    "stop_after_the_answer": functools.partial(_stop_after, 1.0),
    "stop_within_the_answer": functools.partial(_stop_after, 0.5),
}


def noting(completions: list[str], act: list[str], log_extra: Any, **kwargs: Any) -> list[float]:
    if act[0] == "lambda":
        log_extra("note", [lambda: None for _ in completions])
    return length(completions)
