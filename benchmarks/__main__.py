"""`python -m benchmarks`: all of them in at most ten minutes on two cores; writes docs/benchmarks.md."""

from __future__ import annotations

from pathlib import Path

from benchmarks import draw, generation, train_step, whole_run
from benchmarks.report import Row, machine, markdown

TARGET = Path(__file__).parent.parent / "docs" / "benchmarks.md"

HEAD = """\
# Benchmarks

<!-- Written by `make bench`. -->

Ratios within one run on one machine; both sides of a ratio run in turn, so that a noisy minute hits both. The spread is
the range over repetitions.

"""


def main() -> None:
    parts = [
        ("Whole run", "python -m benchmarks.whole_run", whole_run.run),
        ("Training step", "python -m benchmarks.train_step", train_step.run),
        ("Generation", "python -m benchmarks.generation", generation.run),
        ("Draws", "python -m benchmarks.draw", draw.rows),
    ]
    texts = [HEAD, f"Made by `make bench` on {machine()}.\n"]
    for title, command, run in parts:
        print(f"{title} …", flush=True)
        rows: list[Row] = run()
        for row in rows:
            print(f"  {row.name}: {row.ratio:.2f} ({row.bar})", flush=True)
        texts.append(markdown(title, command, rows))
    TARGET.write_text("\n".join(texts), "utf-8")


if __name__ == "__main__":  # whole runs spawn processes that import this file
    main()
