"""Where processes of a local run come from: forked by a server that has imported all they need, or spawned anew.

To import torch and transformers takes seconds of processor time. With the server a run pays that once, however many
Searchers it has, and a Searcher that is replaced is back in a fraction of a second. What is forked are imports, before
anything is computed: no model, no threads of a library that would be missing afterwards.

Two things cannot be forked. Libraries may look for GPUs when they are imported, and then the driver works in no child:
where there is a GPU, processes are spawned. And libraries read environment variables when they are imported: a process
that is to see others than the server saw is spawned, too.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tba.launch.processes import thread_environment
from tba.rewards.process import without_ctrl_c

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Of which one is there where a driver of NVIDIA, of AMD or of Windows offers GPUs."""
PRELOADED = "tba.launch.preloaded"
_servers_environment: dict[str, str] | None = None


def start_process(target: Callable[..., None], arguments: Sequence[Any], name: str, num_threads: int) -> BaseProcess:
    """Start a process that ignores Ctrl-C from its first moment: the terminal sends it to all, and the launcher alone
    decides what it means. A process that was forked sets its own variables and threads (`processes.run_process`)."""
    if _can_fork():
        # The server itself computes nothing: with one thread no library starts others, which would not be forked.
        with _environment(thread_environment(1)), without_ctrl_c():
            forkserver.ensure_running()
        process: BaseProcess = ForkServerProcess(target=target, args=tuple(arguments), name=name)
        process.start()  # returns once the server has imported and forked
        return process
    process = SpawnProcess(target=target, args=tuple(arguments), name=name)
    with _environment(thread_environment(num_threads)), without_ctrl_c():
        process.start()
    return process


def start_server() -> None:
    """Have the server import all that processes need, where they are forked: what is started then is there at once.

    An exception, as of Ctrl-C, ends the server too: it would notice only after its imports that nobody needs it.
    """
    if not _can_fork():
        return
    try:
        start_process(_nothing, (), "first", 1).join()
    except BaseException:
        _end_server()
        raise


def _nothing() -> None: ...


def _end_server() -> None:
    """The next process that is started has another one."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def has_gpu() -> bool:
    """Whether a driver offers GPUs here."""
    return any(Path(file).exists() for file in GPU_FILES)


def _can_fork() -> bool:
    """Whether there is a server for processes of this environment; the first that asks decides what it will have."""
    global _servers_environment
    if sys.platform != "linux" or has_gpu():
        return False
    if _servers_environment is None:
        _servers_environment = dict(os.environ)
        forkserver.set_forkserver_preload([PRELOADED])
    return _servers_environment == dict(os.environ)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
