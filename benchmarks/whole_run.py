"""Whole runs of the embedded default: asynchronous against synchronous, and what int8 search costs in the end."""

from __future__ import annotations

import numpy as np

from benchmarks.report import Row, at_least, at_most, ratio_of
from benchmarks.runs import Finished, accuracy_of, embedded_run, run_embedded
from tba.learn.checkpoint import list_checkpoints

NUM_STEPS = 40
NUM_HELD_OUT = 256
# A strong baseline: two Searcher processes of one thread each, one of two threads, and all in one process.
SYNCHRONOUS = (("local", 2), ("local", 1), ("inline", 1))


def run(full: bool) -> list[Row]:
    rows = _against_synchronous(3 if full else 1)
    return [*rows, _int8_accuracy(3)] if full else rows


def _against_synchronous(repeats: int) -> list[Row]:
    fast, slow, runs = [], [], []
    for _ in range(repeats):
        slow.append(min(_synchronous(launcher, count).seconds_a_step for launcher, count in SYNCHRONOUS))
        runs.append(run_embedded(trainer={"num_steps": NUM_STEPS}))
        fast.append(runs[-1].seconds_a_step)
    ratio, spread = ratio_of(slow, fast)
    summaries = [r.summary for r in runs]
    waits, searcher = (max(s[name] for s in summaries) for name in ("trainer_wait_fraction", "searcher_wait_fraction"))
    publishing = max(s["publish_fraction"] for s in summaries)
    overhead = max(_overhead(r) for r in runs)
    return [
        at_least(
            1.5,
            f"{NUM_STEPS} steps of the embedded default, asynchronous",
            f"{np.median(fast):.3f} s a step",
            f"synchronous (the best of {len(SYNCHRONOUS)} set-ups, all cores in both phases), "
            f"{np.median(slow):.3f} s a step",
            ratio,
            spread,
        ),
        at_most(0.02, "Trainer waiting, share of its time", f"{waits:.2%}", "", waits),
        at_most(0.02, "Searcher waiting, share of its time", f"{searcher:.2%}", "", searcher),
        at_most(0.02, "publication of weights, share of the Trainer's time", f"{publishing:.2%}", "", publishing),
        at_most(0.03, "drawing, collating, merging, logging, share of the same", f"{overhead:.2%}", "", overhead),
    ]


def _synchronous(launcher: str, num_searchers: int) -> Finished:
    return run_embedded(
        run={"launcher": launcher},
        trainer={"num_steps": NUM_STEPS, "synchronous": True, "sync_period": 1},
        searcher={"num_searchers": num_searchers},
    )


def _overhead(finished: Finished) -> float:
    """Time of the Trainer that is neither mathematics nor waiting, after the first step."""
    first, last = finished.train[0], finished.train[-1]
    spent: dict[str, float] = {k: v - first.get(k, 0.0) for k, v in last.items() if k.startswith("seconds/")}
    own = sum(spent.get(f"seconds/{kind}", 0.0) for kind in ("draw", "collate", "merge", "log"))
    return own / sum(spent.values())


def _int8_accuracy(repeats: int) -> Row:
    """What exploring with int8 weights costs in the end: the embedded default with each, the same seeds."""
    coarse, plain = ([_final_accuracy(precision, seed) for seed in range(repeats)] for precision in ("int8", "float32"))
    difference = float(np.mean(plain) - np.mean(coarse))
    error = float(np.sqrt(np.mean(plain) * (1 - np.mean(plain)) / NUM_HELD_OUT))
    return at_most(
        1.0,
        "final accuracy lost by int8 search, in standard errors of one evaluation",
        f"{np.mean(coarse):.3f}",
        f"float32, {np.mean(plain):.3f} ± {error:.3f}",
        difference / error,
        f"{min(coarse):.3f} to {max(coarse):.3f} against {min(plain):.3f} to {max(plain):.3f} (n={repeats})",
    )


def _final_accuracy(precision: str, seed: int) -> float:
    with embedded_run(run={"seed": seed}, engine={"precision": precision, "max_new_tokens": 40}) as (run, _):
        return accuracy_of(list_checkpoints(run)[-1].model)
