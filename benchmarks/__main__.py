"""`python -m benchmarks [NAME …]`, at the root of the repository: measure speed, and write the page of the results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.suite import COMMAND, PARTS, run_parts, write_page
from tba.types import TbaError


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as `tba` does."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{COMMAND}: {message}\n")


def parser() -> Parser:
    found = Parser(prog=COMMAND, description="Measure speed, as ratios within one run.", allow_abbrev=False)
    found.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"{', '.join(PARTS)}; `page` measures nothing and writes the page; `profile` writes Chrome traces of a "
        "training step and of generation; none: all that need neither minutes nor another environment",
    )
    found.add_argument("--full", action="store_true", help="longer runs, more repetitions, and peers: TRL, vLLM")
    found.add_argument("--results", type=Path, default=Path("build/benchmarks"), help="folder of the measured numbers")
    found.add_argument("--page", type=Path, help="write a page of all numbers in the folder of results to this file")
    found.add_argument("--output", type=Path, default=Path("build/profile"), help="for profile: where the traces go")
    found.add_argument(
        "--model", default="arithmetic", help="for profile: arithmetic, or large for the shape of SmolLM2-135M"
    )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        if options.names == ["profile"]:
            from benchmarks.profiling import run_profile  # loads torch

            run_profile(options.output, options.model)
            return 0
        if options.names != ["page"]:
            run_parts(options.names, full=options.full, results=options.results)
        if options.page is not None:
            write_page(options.results, options.page)
    except TbaError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
