"""An objective that a user brings: found, checked before anything starts, given its settings, and trained with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tba.config.settings import Config
from tba.objectives import Evidence, Loss, Objective, StepTotals
from tba.objectives.own import Settings
from tba.types import TbaError

CODE = """
from tba import Evidence, Loss, Objective

class Mine(Objective):
    def __init__(self, strength: float, width: int = 3, num_steps: int = 0, hidden_size: int = 0) -> None:
        self.given = (strength, width, num_steps, hidden_size)

    def __call__(self, evidence: Evidence) -> Loss:
        return Loss(evidence.policy_J.sum() * self.given[0], evidence.reward_GK)

class Plain(Objective):
    def __call__(self, evidence: Evidence) -> Loss:
        raise AssertionError

def function():
    pass
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(CODE, "utf-8")
    return str(path)


def build(settings: Settings) -> Objective:
    settings.check()
    return settings.build(num_steps=7, hidden_size=32)


def test_settings_have_the_types_that_the_class_declares(file: str) -> None:
    """The command line has only text. `num_steps` and `hidden_size` are given to a class that asks for them."""
    made = build(Settings(kind=f"{file}:Mine", strength="0.5", width="8"))
    assert made.given == (0.5, 8, 7, 32)  # type: ignore[attr-defined]
    assert build(Settings(kind=f"{file}:Mine", strength=2)).given == (2.0, 3, 7, 32)  # type: ignore[attr-defined]
    assert type(build(Settings(kind=f"{file}:Plain"))).__name__ == "Plain"


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("Mine", {}, r"objective\.strength is missing: .* asks for it"),
        ("Mine", {"strength": 1, "beta": 2}, r"unknown setting objective\.beta: .* takes strength, width"),
        ("Mine", {"strength": "much"}, r"objective\.strength = 'much': input should be a valid number"),
        ("Mine", {"strength": 1, "num_steps": 3}, r"unknown setting objective\.num_steps"),
        ("Plain", {"x": 1}, r"unknown setting objective\.x: .* takes no settings"),
        ("Other", {}, r"has no 'Other': check the name \(it has Mine, Plain\)"),
        ("function", {}, r"is no subclass of tba\.Objective"),
        ("", {}, r"names no Class: write module:Class or file\.py:Class"),
    ],
)
def test_what_is_wrong_is_one_line(file: str, name: str, settings: dict[str, object], line: str) -> None:
    with pytest.raises(TbaError, match=line) as caught:
        Settings.model_validate({"kind": f"{file}:{name}", **settings}).check()
    assert "\n" not in str(caught.value)


def test_a_module_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TbaError, match=r"objective\.kind 'no_such_module:X': no module named 'no_such_module'"):
        Settings(kind="no_such_module:X").check()


def test_settings_of_the_objective_before_do_not_reach_another_one() -> None:
    """The demo has a beta, which a class need not know; the forms of trajectory balance share theirs."""
    own = Config.embedded(objective={"kind": "mine:Mine", "strength": "1"})
    assert own.objective.model_dump() == {"kind": "mine:Mine", "strength": "1"}
    learned = Config.embedded(objective={"kind": "trajectory_balance_learned_z"}).objective.model_dump()
    assert learned["beta"] == Config.embedded().objective.model_dump()["beta"]


def test_the_settings_are_read_without_running_the_code(tmp_path: Path) -> None:
    """A configuration may be a stranger's."""
    (tmp_path / "trap.py").write_text("raise SystemExit('ran')", "utf-8")
    config = Config.embedded(objective={"kind": f"{tmp_path / 'trap.py'}:Mine"})
    assert config.objective.is_code
    with pytest.raises(TbaError, match="cannot be imported: SystemExit: ran"):
        config.objective.check()


def test_values_of_trajectories_become_means_by_default() -> None:
    class Mine(Objective):
        def __call__(self, evidence: Evidence) -> Loss:
            return Loss(evidence.policy_J.sum(), evidence.reward_GK)

    ones = torch.ones(3, dtype=torch.float64)
    evidence = Evidence(
        policy_J=ones,
        behaviour_J=2 * ones,
        reference_J=3 * ones,
        trajectory_J=torch.tensor([0, 1, 1]),
        position_J=torch.tensor([0, 0, 1]),
        reward_GK=torch.tensor([[0.0, 1.0]]),
        age_GK=torch.zeros(1, 2),
        length_GK=torch.tensor([[1, 2]]),
        on_policy_GK=torch.ones(1, 2, dtype=torch.bool),
        prompt_GH=torch.zeros(1, 4),
        step=1,
        totals=StepTotals(1, 2, 3),
    )
    assert evidence.policy_GK.tolist() == [[1.0, 2.0]]
    assert evidence.behaviour_GK.tolist() == [[2.0, 4.0]]
    assert evidence.reference_GK.tolist() == [[3.0, 6.0]]
    assert evidence.per_token(evidence.reward_GK).tolist() == [0.0, 1.0, 1.0]
    assert Mine()(evidence).value == 3.0
    assert Mine().metrics(1, {"x": np.array([[1.0, 4.0]])}) == {"x": 2.5}
