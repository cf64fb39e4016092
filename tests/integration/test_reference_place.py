"""Where the reference is makes no difference to what is learned."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_runs import INLINE, records, rollouts, small_config, timeless_records, train_records

from tba.api import resume, start
from tba.launch.replay import largest_difference, replay_run

LEARNER = {"where": "learner"}
EXPLORING = {"num_searchers": 2, "temperature_fraction": 0.3}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with the reference in the Searchers and in the Learner."""
    root = tmp_path_factory.mktemp("places")
    first = start(small_config(root, "searcher", run=INLINE, searcher=EXPLORING))
    second = start(small_config(root, "learner", run=INLINE, searcher=EXPLORING, reference=LEARNER))
    return first.run, second.run


def test_the_log_has_what_the_reference_makes_of_every_response(both: tuple[Path, Path]) -> None:
    """To float32: other responses are in the same forward pass. The weights that sample drift apart by as little."""
    ours, others = (rollouts(run) for run in both)
    assert ours["response"][:16].tolist() == others["response"][:16].tolist(), "sampled with the starting weights"
    for a, b in zip(ours["reference_token_logprobs"][:16], others["reference_token_logprobs"][:16], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert len(ours) == len(others)


def test_losses_and_kl_are_those_of_the_other_place(both: tuple[Path, Path]) -> None:
    a, b = (train_records(run) for run in both)
    for before, after in zip(a[:2], b[:2], strict=True):
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-4)
    ours, others = ([r["kl"] for r in records(run, "search")] for run in both)
    assert others[:2] == pytest.approx(ours[:2], abs=1e-4), "the first reports of both Searchers"
    assert [kl is None for kl in others] == [kl is None for kl in ours], "where all was sampled at other temperatures"


def test_a_resume_repeats_it_bit_for_bit(both: tuple[Path, Path], tmp_path: Path) -> None:
    _, whole = both
    run = start(small_config(tmp_path, "again", run=INLINE, searcher=EXPLORING, reference=LEARNER)).run
    shutil.rmtree(run / "checkpoints" / "step-000008")
    resume(run)
    assert timeless_records(run, "train") == timeless_records(whole, "train")
    assert timeless_records(run, "search")[-2:] == timeless_records(whole, "search")[-2:]


def test_a_replay_needs_no_reference(both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = both

    def never(*rest: object) -> None:
        raise AssertionError("the reference was loaded")

    monkeypatch.setattr("tba.build.models._reference_model", never)
    replayed, finished = replay_run(run, {"run": {"root": str(tmp_path), "name": "replay", "display": "none"}})
    assert finished
    assert largest_difference(train_records(run), train_records(replayed)) < 1e-6


def test_processes_leave_it_to_the_learner_too(tmp_path: Path) -> None:
    result = start(small_config(tmp_path, "local", reference=LEARNER, trainer={"num_steps": 4}))
    assert result.finished
    logged = rollouts(result.run)
    lengths = [len(tokens) for tokens in logged["tokens"]]
    assert [len(values) for values in logged["reference_token_logprobs"]] == lengths
    assert all(np.all(values <= 0) for values in logged["reference_token_logprobs"])
    assert any(r["kl"] is not None for r in records(result.run, "search"))
    assert records(result.run, "train")[-1]["seconds/reference"] > 0
