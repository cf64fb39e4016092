"""The ledger of a run: every response that was generated has one fate, and the counts add up exactly.

    trained, buffered, evicted, too_stale   it was merged; `buffer/ledger.py` says what became of it then
    skipped                                 a group with equal rewards that `searcher.skip_equal_rewards` left out
    failed                                  it has no usable reward
    left_out                                the length limit cut it off, and `reward.cut_off = "drop"`
    dropped                                 it has one, but no other response of its group does
    lost                                    its Searcher died before it was merged
    in_flight                               the run ended before it was merged

Searchers report what they have counted about once a second, and when they end; the Trainer says at the end of the run
what it merged from whom. `generated` counts the responses that Searchers had begun when they last reported, and those
that were merged although they had begun later. What a Searcher begins after its last report and never hands up is known
to nobody, and is not counted: with a Searcher that is killed, that is at most what it did within about a second.

Responses that the length limit cut off are counted beside the fates, as "cut": unless they are left out, they are
treated like any others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGED = ("trained", "buffered", "evicted", "too_stale")
ENDED_AT_SEARCHER = ("skipped", "failed", "left_out", "dropped")
FATES = (*MERGED, *ENDED_AT_SEARCHER, "lost", "in_flight")
"""What can become of a response."""
REPORTED = "responses/"
"""What counts of Searchers begin with in their reports."""
PROCESS_ENDED = "process_ended"
"""The event with which a process tells its last counts."""


def ledger_values(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """As `summary.json` has it; all None if the run has not ended in order, or was made before there was a ledger."""
    ended = [r for r in records if r.get("event") == PROCESS_ENDED and "merged" in r]
    if not ended:
        names = ("generated", *FATES, "cut", "num_draws", "most_draws")
        return {f"responses_{name}": None for name in names}
    trainer = ended[-1]
    told = {r["source"]: r for r in records if f"{REPORTED}generated" in r}
    died = {r["source"] for r in records if r.get("event") in ("searcher_restarted", "searcher_lost") and "source" in r}
    counts = dict.fromkeys(("generated", *FATES, "cut"), 0)
    lost: dict[str, int] = {}
    for source in sorted({*told, *trainer["merged"], *died}):
        reported = {name: told.get(source, {}).get(REPORTED + name, 0) for name in ("generated", "cut")}
        ends = {name: told.get(source, {}).get(REPORTED + name, 0) for name in ENDED_AT_SEARCHER}
        settled = sum(ends.values()) + trainer["merged"].get(source, 0)
        generated = max(reported["generated"], settled)
        for name, count in {**ends, "generated": generated, "cut": reported["cut"]}.items():
            counts[name] += count
        counts["lost" if source in died else "in_flight"] += generated - settled
        if source in died:
            lost[source] = generated - settled
    counts |= {name: trainer[name] for name in MERGED}
    return {
        **{f"responses_{name}": count for name, count in counts.items()},
        **{f"responses_{name}": trainer[name] for name in ("num_draws", "most_draws")},
        **{f"responses_lost/{source}": count for source, count in lost.items()},
    }
