from __future__ import annotations

import asyncio
import functools
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tba.rewards import functions
from tba.rewards.functions import (
    check_column_names,
    check_columns,
    check_importable,
    is_async,
    name_of,
    names_of,
    resolve,
)
from tba.rewards.scoring import ScoreRequest
from tba.testing import score_now
from tba.types import TbaError

REWARDS = Path(__file__).resolve().parents[1] / "rewards_for_tests.py"


def spec(name):
    return f"{REWARDS}:{name}"


def call(function, keywords):
    async def finished(result):
        return await result if inspect.isawaitable(result) else result

    return asyncio.run(finished(functions.call(function, keywords)))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current directory; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name",
    ["mine:reward", "mine.reward", "mine.py:reward", "./mine.py:reward", "package.sub:reward", "package.sub.reward"],
)
def test_resolves_every_spelling_from_the_current_directory(folder, name):
    (folder / "package").mkdir()
    for path in (folder / "mine.py", folder / "package" / "sub.py"):
        path.write_text("def reward(completions, **kwargs): return [1.0 for _ in completions]")
    assert call(resolve(name), {"completions": ["a", "b"]}) == [1.0, 1.0]


def test_a_file_may_import_its_neighbours_and_is_loaded_once(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "neighbour_of_reward.py").write_text("value = 2.0")
    (folder / "sub" / "mine.py").write_text(
        "from neighbour_of_reward import value\nbox = []\n"
        "def f(**k): box.append(1)\ndef g(**k): return [value] * len(box)"
    )
    resolve("sub/mine.py:f")()
    assert resolve("sub/mine.py:g")() == [2.0]


def test_files_of_one_name_are_different_modules(folder):
    for number in (1, 2):
        (folder / f"in{number}").mkdir()
        (folder / f"in{number}" / "mine.py").write_text(f"def f(**k): return [{number}]")
    assert resolve("in1/mine.py:f")() + resolve("in2/mine.py:f")() == [1, 2]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("mine", ["names no function", "module:function"]),
        ("mine.py", ["names no function", "file.py:function"]),
        ("mine:", ["names no function"]),
        ("missing_module:reward", ["no module named 'missing_module'", "folder"]),
        ("missing/mine.py:reward", ["no file at", "missing/mine.py"]),
        ("mine:rewrad", ["has no 'rewrad'", "did you mean 'reward'?"]),
        ("mine:other", ["has no 'other'", "it has Class, reward"]),
        ("mine:number", ["is of type int", "name a function"]),
        ("mine:Class", ["is a class"]),
        ("raising:reward", ["cannot be imported", "ZeroDivisionError: division by zero", "raising.py, line 2"]),
        ("raising.py:reward", ["cannot be imported", "ZeroDivisionError: division by zero", "raising.py, line 2"]),
        ("exiting:reward", ["cannot be imported", "SystemExit"]),
        ("broken.py:reward", ["cannot be imported", "SyntaxError", "line 1"]),
        ("needing:reward", ["cannot be imported", "No module named 'not_installed'"]),
    ],
)
def test_failures_are_one_line_that_names_the_reward(folder, name, parts):
    (folder / "mine.py").write_text("number = 5\nclass Class: ...\ndef reward(**k): ...")
    (folder / "raising.py").write_text("\n1 / 0")
    (folder / "exiting.py").write_text("raise SystemExit(2)")
    (folder / "broken.py").write_text("def (")
    (folder / "needing.py").write_text("import not_installed")
    with pytest.raises(TbaError) as caught:
        check_importable(name)
    message = str(caught.value)
    assert "\n" not in message
    for part in [repr(name), *parts]:
        assert part in message


def test_a_file_that_failed_can_be_mended(folder):
    mine = folder / "mine.py"
    mine.write_text("1 / 0")
    with pytest.raises(TbaError):
        resolve("mine.py:f")
    mine.write_text("def f(): return [1.0]  # mended")
    assert resolve("mine.py:f")() == [1.0]


def test_a_required_column_must_be_there():
    check_columns(spec("strict"), [{"answer": 1}])
    check_columns(spec("echo"), [{}])
    check_columns(spec("doubled"), [{}])
    with pytest.raises(TbaError, match=r"asks for 'answer', which the data has no column for.*columns: solution"):
        check_columns(spec("strict"), [{"solution": 1}] * 2)


def test_a_required_column_must_be_in_every_row():
    with pytest.raises(TbaError, match=r"asks for 'answer', which 1 of the 3 rows have no column for"):
        check_columns(spec("strict"), [{"answer": 1}, {"solution": 1}, {"answer": 2}])


def test_a_column_may_not_have_the_name_of_a_standard_argument():
    check_column_names([{"answer": 1, "text": "x"}])
    with pytest.raises(TbaError, match=r"column 'texts'.*rename it"):
        check_column_names([{"answer": 1}, {"texts": "x"}])


def test_functions_have_names_for_metrics():
    assert name_of(resolve(spec("length"))) == "length"
    assert name_of(resolve(spec("doubled"))) == "scaled"
    assert name_of(functools.partial(functools.partial(resolve(spec("tripled"))))) == "Weighted"
    assert names_of([len, abs, len, len]) == ("len", "abs", "len_2", "len_3")


@pytest.mark.parametrize(("name", "factor"), [("length", 1), ("doubled", 2), ("tripled", 3)])
def test_calls_any_kind_of_function(name, factor):
    values = call(resolve(spec(name)), {"prompts": ["p", "p"], "completions": ["a", "bb"], "answer": [1, 1]})
    assert values == [factor * 1.0, factor * 2.0]


def test_async_is_seen_through_wrappers():
    async def ones(completions, **kwargs):
        return [1.0 for _ in completions]

    class Judge:
        async def __call__(self, completions):
            return await ones(completions)

    assert call(functools.partial(ones, other=1), {"completions": ["abc"]}) == [1.0]
    assert call(Judge(), {"completions": ["abc"], "answer": ["d"]}) == [1.0]
    assert call(lambda completions: ones(completions), {"completions": ["abc"]}) == [1.0]
    assert is_async(functools.partial(ones, other=1))
    assert is_async(Judge())
    assert not any(map(is_async, [len, resolve(spec("tripled")), resolve(spec("doubled"))]))


def test_passes_only_what_the_function_accepts():
    keywords = {"prompts": ["p"], "completions": ["a"], "completion_ids": [[1]], "answer": ["a"], "level": [3]}
    assert call(resolve(spec("strict")), keywords) == [1.0]


@pytest.mark.parametrize("conversational", [False, True], ids=["plain", "chat"])
@pytest.mark.parametrize("page", ["README.md", "examples/own_reward/rewards.py"])
def test_documented_rewards_score_plain_and_chat_responses_alike(page, conversational):
    source = (Path(__file__).parents[2] / page).read_text("utf-8")
    if page == "README.md":
        [source] = re.findall(r"```python\n(def my_reward.*?)```", source, re.DOTALL)
    made: dict[str, Any] = {}
    exec(source, made)
    reward = made.get("my_reward") or made["right_answer"]
    prompt = [{"role": "user", "content": "2+2="}] if conversational else "2+2="
    asked = ScoreRequest("p", prompt, ("it is 4", "it is 5"), ((1,),) * 2, (True,) * 2, {"answer": "4"}, conversational)
    assert score_now({"reward": reward}, asked).rewards == (1.0, 0.0)
