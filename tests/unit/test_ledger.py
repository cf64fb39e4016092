"""The counts of the ledger add up exactly, whoever reported what before it died."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tba.runs.ledger import ENDED_AT_SEARCHER, FATES, MERGED, ledger_values
from tba.runs.summary import summarise


def event(**values: Any) -> dict[str, Any]:
    return {"kind": "event", "step": 9, "time": 9.0, **values}


def report(source: str, **counts: int) -> dict[str, Any]:
    return event(event="process_ended", source=source, **{f"responses/{name}": n for name, n in counts.items()})


def trainer(merged: dict[str, int], **counts: int) -> dict[str, Any]:
    fates = {**dict.fromkeys(MERGED, 0), "trained": sum(merged.values()) - sum(counts.values()), **counts}
    return event(event="process_ended", source="trainer", merged=merged, num_draws=7, most_draws=3, **fates)


def assert_adds_up(values: dict[str, Any]) -> None:
    assert values["responses_generated"] == sum(values[f"responses_{fate}"] for fate in FATES)
    assert min(values[f"responses_{fate}"] for fate in FATES) >= 0


def test_a_searcher_that_ended_in_order() -> None:
    told = report("searcher-0", generated=100, cut=7, failed=2, left_out=1, skipped=8, dropped=1, handed_up=80)
    values = ledger_values([told, trainer({"searcher-0": 80}, evicted=10, too_stale=5, buffered=20)])
    assert_adds_up(values)
    wanted = {"generated": 100, "trained": 45, "buffered": 20, "evicted": 10, "too_stale": 5, "failed": 2}
    wanted |= {"left_out": 1}
    wanted |= {"skipped": 8, "dropped": 1, "lost": 0, "in_flight": 8, "cut": 7, "num_draws": 7, "most_draws": 3}
    assert values == {f"responses_{name}": count for name, count in wanted.items()}


def test_what_a_dead_searcher_had_is_lost_under_its_name() -> None:
    records = [
        report("searcher-0", generated=50, failed=2, handed_up=30),
        event(event="searcher_restarted", searcher=0, source="searcher-0", why="…"),
        report("searcher-0.1", generated=20, handed_up=12),
        trainer({"searcher-0": 36, "searcher-0.1": 12}),
    ]
    values = ledger_values(records)
    assert_adds_up(values)
    assert values["responses_lost"] == values["responses_lost/searcher-0"] == 50 - 2 - 36
    assert values["responses_in_flight"] == 20 - 12


def test_what_was_merged_was_generated_though_nobody_lived_to_report_it() -> None:
    values = ledger_values([report("searcher-0", generated=10, failed=1), trainer({"searcher-0": 40, "searcher-1": 4})])
    assert_adds_up(values)
    assert values["responses_generated"] == 45
    assert values["responses_in_flight"] == 0


def test_the_last_report_and_the_last_end_of_the_trainer_count() -> None:
    """As after a resume."""
    first = [report("searcher-0", generated=10, handed_up=8), trainer({"searcher-0": 8})]
    values = ledger_values([*first, report("searcher-0", generated=30, handed_up=30), trainer({"searcher-0": 30})])
    assert (values["responses_generated"], values["responses_trained"]) == (30, 30)


def test_a_run_that_has_not_ended_has_no_ledger_but_its_keys() -> None:
    values = ledger_values([report("searcher-0", generated=10)])
    assert set(values) >= {f"responses_{name}" for name in ("generated", *FATES)}
    assert set(values.values()) == {None}
    assert summarise([])["responses_generated"] is None


COUNT = st.integers(0, 50)
ENDS = st.fixed_dictionaries(dict.fromkeys(ENDED_AT_SEARCHER, COUNT))
SOURCES = ("searcher-0", "searcher-0.1", "searcher-1")


@given(
    st.lists(
        st.tuples(st.sampled_from(SOURCES), COUNT, st.fixed_dictionaries(dict.fromkeys(ENDED_AT_SEARCHER, COUNT)))
    ),
    st.dictionaries(st.sampled_from(SOURCES), COUNT),
    st.sets(st.sampled_from(SOURCES)),
)
@settings(max_examples=100, deadline=None)
def test_the_counts_always_add_up(
    reports: list[tuple[str, int, dict[str, int]]], merged: dict[str, int], died: set[str]
) -> None:
    """Whatever was merged after the last report, or reported and never merged."""
    told = [report(source, generated=n + sum(ends.values()), **ends) for source, n, ends in reports]
    deaths = [event(event="searcher_lost", searcher=0, source=source) for source in died]
    values = ledger_values([*told, *deaths, trainer(merged)])
    assert_adds_up(values)
    assert values["responses_lost"] == sum(v for k, v in values.items() if k.startswith("responses_lost/"))
