from __future__ import annotations

import pytest

from tba.objectives.trajectory_balance import Settings


def published(step: int, first: float, final: float, length: int, stop: int) -> float:
    """The schedule of arXiv 2503.18929: β(u) = bf (u−1)/T + b0 (1 − (u−1)/T) for u < stop, else bf."""
    done = (step - 1) / length
    return final * done + first * (1 - done) if step < stop else final


def test_the_papers_gsm8k_beta_is_linear() -> None:
    config = Settings(beta=0.014, beta_final=0.004, beta_schedule="linear", beta_steps=500)
    betas = [config.beta_at(step, 700) for step in range(1, 701)]
    assert betas == [published(step, 0.014, 0.004, 500, 500) for step in range(1, 701)]
    assert betas[0] == 0.014
    assert betas[250] == pytest.approx(0.009)
    assert betas[499:] == [0.004] * 201
    assert betas == sorted(betas, reverse=True)


def test_the_papers_tldr_beta_stops_and_jumps() -> None:
    config = Settings(beta=1.0, beta_final=0.05, beta_schedule="jump", beta_steps=128, beta_stop=32)
    betas = [config.beta_at(step, 256) for step in range(1, 257)]
    assert betas == [published(step, 1.0, 0.05, 128, 32) for step in range(1, 257)]
    assert betas[0] == 1.0
    assert betas[30] == pytest.approx(0.777, abs=5e-4)
    assert betas[31:] == [0.05] * 225


def test_lengths_follow_from_the_number_of_steps_as_in_the_paper() -> None:
    written = Settings(beta=1.0, beta_final=0.05, beta_schedule="jump", beta_steps=128, beta_stop=32)
    left_out = Settings(beta=1.0, beta_final=0.05, beta_schedule="jump")
    assert [left_out.beta_at(step, 256) for step in range(1, 257)] == [
        written.beta_at(step, 256) for step in range(1, 257)
    ]


def test_a_constant_beta_stays() -> None:
    config = Settings(beta=0.005)
    assert {config.beta_at(step, 400) for step in range(1, 401)} == {0.005}


@pytest.mark.parametrize("schedule", ["linear", "jump"])
@pytest.mark.parametrize(("length", "stop"), [(1, 1), (1, 50), (10, 50), (50, 10), (7, 7)])
def test_beta_never_leaves_its_ends(schedule: str, length: int, stop: int) -> None:
    config = Settings(beta=0.5, beta_final=0.1, beta_schedule=schedule, beta_steps=length, beta_stop=stop)
    betas = [config.beta_at(step, 60) for step in range(1, 61)]
    assert all(0.1 - 1e-12 <= beta <= 0.5 for beta in betas)
    assert betas[-1] == 0.1
