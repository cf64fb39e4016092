from __future__ import annotations

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tba.testing import make_response
from tba.types import NEVER_PUBLISHED, Response, SearcherName, Steps, Version


def test_versions_order_by_epoch_first() -> None:
    assert NEVER_PUBLISHED < Version(0, 0) < Version(0, 9) < Version(1, 3) < Version(1, 4)


def test_versions_are_printed_without_epoch_0() -> None:
    assert [str(Version(0, 12)), f"{Version(2, 12)}"] == ["12", "2:12"]
    assert Version(0, 12).record() == {"version": 12}
    assert Version(2, 12).record() == {"version": 12, "epoch": 2}


def test_versions_travel() -> None:
    version = Version(2, 12)
    assert Version.read(json.loads(json.dumps(version))) == version
    assert type(pickle.loads(pickle.dumps(version))) is Version
    assert Version.read(12) == Version(0, 12)


RUNS = st.lists(
    st.tuples(st.none() | st.builds(Version, st.integers(0, 3), st.integers(0, 9)), st.integers(1, 4)),
    min_size=1,
    max_size=5,
).filter(lambda runs: any(version is not None for version, _ in runs))


@given(RUNS)
def test_what_the_policy_wrote_is_what_has_a_version(runs: list[tuple[Version | None, int]]) -> None:
    by_token = [version for version, num in runs for _ in range(num)]
    tokens = np.arange(len(by_token), dtype=np.int32)
    response = Response(tokens, np.zeros(len(tokens), np.float32), tuple(runs), "", True)
    assert response.written.dtype == np.bool_
    assert response.written.tolist() == [version is not None for version in by_token]
    assert response.num_written == sum(version is not None for version in by_token)
    assert response.version == min(version for version in by_token if version is not None)
    assert len(response) == len(by_token)


def test_a_generated_response_is_all_the_policys() -> None:
    response = make_response([5, 6, 7], version=Version(1, 4))
    assert response.written.all()
    assert (response.num_written, len(response), response.version) == (3, 3, Version(1, 4))


def test_a_response_of_others_has_no_version() -> None:
    with pytest.raises(ValueError):
        _ = replace(make_response([5]), token_versions=((None, 1),)).version


@given(*[st.builds(Steps, st.integers(0, 5), st.none() | st.integers(0, 5)) for _ in range(2)])
def test_the_steps_in_both_are_in_each(one: Steps, other: Steps) -> None:
    for step in range(8):
        assert one.within(other).includes(step) == (one.includes(step) and other.includes(step))


@pytest.mark.parametrize(
    ("name", "text"),
    [(SearcherName(0), "searcher-0"), (SearcherName(3, 12), "searcher-3.12"), (SearcherName(10), "searcher-10")],
)
def test_a_searcher_is_known_by_its_source_and_by_its_process(name: SearcherName, text: str) -> None:
    assert str(name) == text
    assert SearcherName.read(text) == name
    assert name.process == f"searcher-{name.index}", "whichever start it is"
