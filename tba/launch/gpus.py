"""How many GPUs there are, asked by a process that does without torch."""

from __future__ import annotations

import subprocess
import sys

from tba.types import TbaError

_QUESTION = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def count_gpus() -> int:
    """As many as torch finds, which a process of its own is asked: no other count knows its build and its driver."""
    done = subprocess.run([sys.executable, "-c", _QUESTION], capture_output=True, text=True, check=False)
    try:
        return int(done.stdout)
    except ValueError:
        why = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise TbaError(f"torch cannot say how many GPUs there are: {why}") from None
