"""The recipes of CONTRIBUTING.md name every file that a new objective or a new task has to touch."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tba import objectives, tasks
from tba.policy.names import EMBEDDED_MODEL

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FOR_ANOTHER_REASON = {"tba/extras.py", "tba/rewards/reasoning_gym.py"}
"""They use the name of an extra, which is also that of a kind."""


def recipe(title: str) -> list[str]:
    """The items of a section."""
    section = re.split(r"^## ", TEXT.partition(f"## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [item.replace("\n", " ") for item in re.findall(r"^- (.*(?:\n  .*)*)", section, re.MULTILINE)]


def files_of(title: str) -> set[str]:
    return {name for item in recipe(title) for name in re.findall(r"`(tba/[\w/.]+\.py)`", item)}


@cache
def mentions() -> dict[str, set[str]]:
    """The texts of every file of the package."""
    found = {}
    for path in sorted((ROOT / "tba").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        found[str(path.relative_to(ROOT))] = {
            node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


def files_with(text: str) -> set[str]:
    return {file for file, texts in mentions().items() if text in texts}


@pytest.mark.parametrize("title", ["A new objective", "A new task"])
def test_what_a_recipe_names_is_there(title: str) -> None:
    items = recipe(title)
    assert len(items) >= 3
    for item in items:
        for part in item.split("; "):
            file, *words = re.findall(r"`([^`]+)`", part) or [""]
            if not file.endswith(".py") or "NAME" in file:
                continue
            text = (ROOT / file).read_text("utf-8")
            assert [word for word in words if word.isidentifier() and word not in text] == [], file


@pytest.mark.parametrize("kind", [kind for kind in tasks.KINDS if kind != EMBEDDED_MODEL])
def test_a_task_is_a_file_and_a_line(kind: str) -> None:
    """Nothing else of the package knows a task by its name."""
    own = f"{tasks.settings_of(kind).__module__.replace('.', '/')}.py"
    assert files_with(kind) - FOR_ANOTHER_REASON == {own, "tba/tasks/__init__.py"}
    assert "tba/tasks/__init__.py" in files_of("A new task")


@pytest.mark.parametrize("kind", objectives.KINDS)
def test_an_objective_is_a_file_and_a_line(kind: str) -> None:
    """Nothing else of the package knows an objective by its name."""
    found = files_with(kind)
    assert found == {f"tba/objectives/{kind}.py", "tba/objectives/__init__.py"}
    assert found - {f"tba/objectives/{kind}.py"} <= files_of("A new objective")
