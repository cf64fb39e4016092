"""Reward functions that cannot be imported travel by value, others by name, and nothing is read from a file."""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import rewards_for_tests
from rich.console import Console
from rich.text import Text

from tba.api import _reward_names, resume
from tba.launch.processes import importable_main
from tba.rewards.functions import check_columns, name_of, resolve, shipped
from tba.rewards.given import GIVEN, GivenReward, find_given, give, given_for, keep_sources, take
from tba.rewards.process import RewardProcess
from tba.rewards.scoring import ScoreRequest
from tba.runs import notebook
from tba.runs.result import Result
from tba.types import TbaError

BONUS = 0.25
REQUEST = ScoreRequest("p", "1+1=", ("2", "three"), ((1,), (2,)), (True, True), {"answer": "2"}, conversational=False)


def made_here(bonus: float) -> Any:
    def right(texts: list[str], answer: list[str], **columns: Any) -> list[float]:
        return [float(text == truth) + bonus for text, truth in zip(texts, answer, strict=True)]

    return right


def scores_of(spec: Any) -> tuple[float | None, ...]:
    process = RewardProcess([spec], [1.0], 30.0)
    try:
        process.wait_until_ready(60.0)
        return process.score(REQUEST).rewards
    finally:
        process.stop()


def test_a_closure_is_scored_in_its_own_process_with_what_it_uses() -> None:
    [name] = give([made_here(BONUS)])
    assert name == f"{GIVEN}right"
    assert scores_of(name) == (1.25, 0.25)


def test_what_can_be_imported_is_named_and_the_rest_given() -> None:
    function = rewards_for_tests.length
    names = _reward_names([function, "module:other", lambda texts: [0.0] * len(texts), made_here(1), made_here(2)])
    assert names == ["rewards_for_tests:length", "module:other", f"{GIVEN}lambda", f"{GIVEN}right", f"{GIVEN}right_2"]
    assert _reward_names(functools.partial(function)) == [f"{GIVEN}partial"]
    method = _Judge(3.0).judge
    assert _reward_names(method) == [f"{GIVEN}judge"], "the class has the method, without the object"
    assert resolve(f"{GIVEN}judge")(texts=["a"]) == [3.0]


class _Judge:
    def __init__(self, value: float) -> None:
        self.value = value

    def judge(self, texts: list[str]) -> list[float]:
        return [self.value] * len(texts)


def test_it_is_checked_like_any_other() -> None:
    [name] = give([made_here(0)])
    with pytest.raises(TbaError, match=r"asks for 'answer', which the data has no column for"):
        check_columns(name, [{"question": "x"}])
    with pytest.raises(TbaError, match="is a class: name a function"):
        resolve(next(give([type("Local", (), {})])))


def test_what_cannot_be_sent_is_told_at_once() -> None:
    lock = threading.Lock()
    with pytest.raises(TbaError, match=r"reward holds cannot be sent to its own process \(TypeError: cannot pickle"):
        list(give([_holding(lock)]))


def _holding(lock: Any) -> Any:
    def holds(texts: list[str]) -> list[float]:
        with lock:
            return [0.0] * len(texts)

    return holds


def test_a_value_that_is_broken_is_told_in_one_line() -> None:
    with pytest.raises(TbaError, match="cannot be made again in its own process"):
        resolve(GivenReward("<given>:x", b"no pickle", None))


def test_another_session_is_told_to_give_it_again() -> None:
    with pytest.raises(TbaError, match=r"give it again with tba\.resume\(RUN, reward=of_yesterday\)"):
        resolve(f"{GIVEN}of_yesterday")
    with pytest.raises(TbaError, match="of_yesterday"):
        given_for(["module:other", f"{GIVEN}of_yesterday"])


def test_a_process_knows_what_it_was_started_with() -> None:
    travelling = GivenReward("<given>:travels", find_given(next(give([made_here(0)]))).code, None)
    take([travelling])
    assert shipped("<given>:travels") == travelling
    assert shipped("module:other") == "module:other"


def test_sources_are_kept_as_text_and_never_run(tmp_path: Path) -> None:
    names = [*give([made_here(0), made_here(1)]), "module:other"]
    keep_sources(tmp_path, names)
    kept = sorted((tmp_path / "rewards").iterdir())
    assert [path.name for path in kept] == ["right.py.txt", "right_2.py.txt"]
    assert kept[0].read_text("utf-8").lstrip().startswith("def right(texts")


@pytest.mark.parametrize("reward", [3, [3], [len, None]])
def test_what_is_no_function_is_told_in_one_line(reward: Any) -> None:
    with pytest.raises(TbaError, match="give a function, its module:function, or a list of these"):
        _reward_names(reward)


def test_a_lambda_has_a_name_for_metrics() -> None:
    assert name_of(lambda texts: []) == "lambda"


def test_a_resume_of_nothing_is_still_told_first(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=r"is not a run|no run"):
        resume(tmp_path / "no-such", reward=made_here(0))


# ---------------------------------------------------------------------------------------------------------------------
# A main script that is no file
# ---------------------------------------------------------------------------------------------------------------------


def test_processes_do_not_look_for_a_script_that_came_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "<stdin>", raising=False)
    with importable_main():
        assert not hasattr(main, "__file__")
    assert main.__file__ == "<stdin>"
    monkeypatch.setattr(main, "__file__", __file__)
    with importable_main():
        assert main.__file__ == __file__


# ---------------------------------------------------------------------------------------------------------------------
# What a notebook shows
# ---------------------------------------------------------------------------------------------------------------------


def test_a_result_reads_well(tmp_path: Path) -> None:
    run = tmp_path / "a<b"
    run.mkdir()
    assert repr(Result(run, False)) == f"Result({str(run)!r}, stopped)"
    (run / "summary.json").write_text(
        '{"judged_by": "accuracy", "accuracy_first": 0.5, "accuracy_last": 0.75, "reward_first": null, '
        '"reward_last": 0.1, "steps": 4, "wall_seconds": 61.7}'
    )
    result = Result(run, True)
    assert repr(result) == f"Result({str(run)!r}, finished, held-out accuracy 0.500 → 0.750)"
    table = result._repr_html_()
    assert "<tr><th>held-out accuracy</th><td>0.500 → 0.750</td></tr>" in table
    assert "a&lt;b" in table
    assert "no checkpoint yet" in table
    assert "4 in 62 s" in table


def test_the_panel_of_a_notebook_is_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[str] = []

    class Handle:
        def update(self, page: Any) -> None:
            shown.append(page.data)

    def first(page: Any, display_id: bool) -> Handle:
        assert display_id
        shown.append(page.data)
        return Handle()

    monkeypatch.setattr(display, "display", first)
    panel = notebook.live_panel(Text("step <1>"), Console(force_jupyter=True))
    assert isinstance(panel, notebook.NotebookPanel)
    panel.start()
    panel.update(Text("step 2"))
    panel.stop()
    assert ["step &lt;1&gt;" in shown[0], "step 2" in shown[1], shown[2]] == [True, True, ""]
