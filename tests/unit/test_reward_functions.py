from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from tba.rewards.functions import call, check_columns, check_importable, name_of, names_of, resolve
from tba.types import TbaError

REWARDS = Path(__file__).resolve().parents[1] / "rewards_for_tests.py"


def spec(name):
    return f"{REWARDS}:{name}"


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
        ("mine:rewrad", ["has no 'rewrad'", "reward"]),
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
    check_columns(spec("strict"), ["answer"])
    check_columns(spec("echo"), [])
    check_columns(spec("doubled"), [])
    with pytest.raises(TbaError, match=r"asks for 'answer'.*columns: solution"):
        check_columns(spec("strict"), ["solution"])


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


def test_passes_only_what_the_function_accepts():
    keywords = {"prompts": ["p"], "completions": ["a"], "completion_ids": [[1]], "answer": ["a"], "level": [3]}
    assert call(resolve(spec("strict")), keywords) == [1.0]
