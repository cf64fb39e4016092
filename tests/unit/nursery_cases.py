"""What the tests of the nursery run in processes: a launcher of its own, so that its server is its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tba.launch import nursery

PRELOADED = "wave"  # stands for torch: nothing else imports it


def child(path: str) -> None:
    ignored = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    seen = {"forked": PRELOADED in sys.modules, "threads": os.environ["OMP_NUM_THREADS"], "ignored": ignored}
    Path(path).write_text(json.dumps(seen), "utf-8")


def launcher(folder: str) -> None:
    """One child as it is, one with another environment, one as the first again, one where there is a GPU."""
    nursery.PRELOADED = PRELOADED
    before = dict(os.environ), signal.getsignal(signal.SIGINT)
    run(folder, "first")
    os.environ["TBA_SOMETHING"] = "else"
    run(folder, "other environment")
    del os.environ["TBA_SOMETHING"]
    run(folder, "again")
    nursery.GPU_FILES = (__file__,)
    run(folder, "gpu")
    changed = (dict(os.environ), signal.getsignal(signal.SIGINT)) != before
    Path(folder, "launcher").write_text(json.dumps(changed), "utf-8")


def run(folder: str, name: str) -> None:
    process = nursery.start_process(child, [str(Path(folder, name))], name, num_threads=3)
    process.join()


if __name__ == "__main__":
    launcher(sys.argv[1])
