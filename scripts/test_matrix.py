"""Runs the test suite as other machines would: with other kernels, other rounding, busy cores, in other orders.

Every run has a Hypothesis seed, an order and a temporary folder of its own. It prints one line for each, adds it to
`build/test-matrix.jsonl`, keeps what a failing run printed beside that file, and fails if any run did.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "test-matrix.jsonl"

KERNELS = {
    "plain": {},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},  # heeded on Intel only
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "aten-default": {"ATEN_CPU_CAPABILITY": "default"},
    "aten-avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "numpy-sse": {"NPY_DISABLE_CPU_FEATURES": "AVX512_ICL X86_V4 X86_V3"},
}
# One old machine: none of the newer instructions, in any library.
KERNELS["oldest"] = {name: value for changes in KERNELS.values() for name, value in changes.items()} | {
    "ATEN_CPU_CAPABILITY": "default"
}
SETTINGS = (*KERNELS, "rounding", "busy")

# It ends with its parent, even if that is killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1, help="runs under each setting")
    help_only = "this setting, or several at once, as in `aten-avx2+rounding`; may be given several times"
    parser.add_argument("--only", type=_known, action="append", metavar="SETTING", help=help_only)
    parser.add_argument("--tests", nargs="+", default=["tests"], help="what to run of the suite")
    parser.add_argument("--jobs", default="auto", help="processes that run tests; `auto`: one for each core")
    options = parser.parse_args()
    RESULTS.parent.mkdir(exist_ok=True)
    failed = 0
    for _ in range(options.repeats):
        for setting in options.only or SETTINGS:
            failed += not run(setting, options.tests, options.jobs)
    return 1 if failed else 0


def _known(setting: str) -> str:
    unknown = set(setting.split("+")) - set(SETTINGS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no setting {min(unknown)!r}: one of {', '.join(SETTINGS)}")
    return setting


def run(setting: str, tests: list[str], jobs: str = "auto") -> bool:
    """One run of the suite, reported. Whether it passed."""
    parts = setting.split("+")
    seed, order_seed = (random.SystemRandom().randrange(10**6) for _ in range(2))
    words = ["-rfE", "-p", "no:cacheprovider", f"--numprocesses={jobs}", "--dist=loadfile", "--no-loadscope-reorder"]
    words += [f"--hypothesis-seed={seed}", f"--order-seed={order_seed}", *tests]
    if "rounding" in parts:
        words.append(f"--rounding-seed={seed}")
    started = time.monotonic()
    with busy_cores("busy" in parts), tempfile.TemporaryDirectory() as storage:
        # Folders of other lengths: a screen wraps their names elsewhere.
        words.append(f"--basetemp={Path(storage, 'x' * (1 + order_seed % 60))}")
        # Examples that failed in one run would come again in the next, which has its own to look for.
        changes = {name: value for part in parts for name, value in KERNELS.get(part, {}).items()}
        changes["HYPOTHESIS_STORAGE_DIRECTORY"] = storage
        command = [sys.executable, "-m", "pytest", *words]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | changes, capture_output=True, text=True)
    record = {
        "setting": setting,
        "seed": seed,
        "order_seed": order_seed,
        "passed": done.returncode == 0,
        "seconds": round(time.monotonic() - started),
        "failures": failures(done.stdout),
    }
    report(record, done)
    return done.returncode == 0


def failures(output: str) -> list[str]:
    """The tests that pytest's summary names; what is in the brackets of a name may contain anything."""
    return re.findall(r"^(?:FAILED|ERROR) (\S+?(?:\[.*?\])?)(?: - .*)?$", output, re.MULTILINE)


@contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """A process on each core that does nothing but compute, until the end."""
    count = (os.cpu_count() or 1) if wanted else 0
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def report(record: dict[str, object], done: subprocess.CompletedProcess[str]) -> None:
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    verdict = "passed" if record["passed"] else f"FAILED ({done.returncode})"
    print("{setting:18} seed {seed:6} order {order_seed:6} {seconds:5} s".format(**record), verdict, flush=True)
    if not record["passed"]:
        output = RESULTS.with_name("test-matrix-{setting}-{seed}.txt".format(**record))
        output.write_text(done.stdout + done.stderr, "utf-8")
        print(*(f"  {name}" for name in failures(done.stdout)), f"  see {output}", sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
