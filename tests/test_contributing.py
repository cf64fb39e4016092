"""The recipes of CONTRIBUTING.md name every file that a new objective or a new task has to touch."""

from __future__ import annotations

import ast
import re
import typing
from functools import cache
from pathlib import Path

import pytest

from tba.config import EMBEDDED_MODEL, Config
from tba.config_help import task_lines
from tba.config_section import Section
from tba.config_tasks import KINDS_WITH_DATA, TASK_KINDS
from tba.objectives import KINDS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
FOR_ANOTHER_REASON = {"tba/extras.py", "tba/api.py"}
"""They use the name of a kind and would not have to know another: an extra's name, and rows given from Python."""
TASKS: tuple[type[Section], ...] = typing.get_args(Config.model_fields["task"].annotation)


def recipe(title: str) -> list[str]:
    """The items of a section."""
    section = re.split(r"^## ", TEXT.partition(f"## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return [item.replace("\n", " ") for item in re.findall(r"^- (.*(?:\n  .*)*)", section, re.MULTILINE)]


def files_of(title: str) -> set[str]:
    return {name for item in recipe(title) for name in re.findall(r"`(tba/[\w/.]+\.py)`", item)}


@cache
def mentions() -> dict[str, tuple[set[str], set[str]]]:
    """Variables and texts of every file of the package."""
    found = {}
    for path in sorted((ROOT / "tba").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        variables = {node.id for node in nodes if isinstance(node, ast.Name)}
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found[str(path.relative_to(ROOT))] = (variables, texts)
    return found


def files_with(*, variable: str = "", text: str = "") -> set[str]:
    return {
        file for file, (variables, texts) in mentions().items() if variable in variables or (text and text in texts)
    }


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


@pytest.mark.parametrize("model", TASKS, ids=lambda model: model.__name__)
def test_the_recipe_of_a_task_leaves_no_file_out(model: type[Section]) -> None:
    kind = model.model_fields["kind"].default
    found = files_with(variable=model.__name__, text="" if kind == EMBEDDED_MODEL else kind)
    own = {file for file in found if file.startswith("tba/tasks/")}
    assert "tba/tasks/__init__.py" in own
    assert found - own - FOR_ANOTHER_REASON <= files_of("A new task")


@pytest.mark.parametrize("kind", KINDS)
def test_an_objective_is_a_file_and_a_line(kind: str) -> None:
    """Nothing else of the package knows an objective by its name."""
    found = files_with(text=kind)
    assert found == {f"tba/objectives/{kind}.py", "tba/objectives/__init__.py"}
    assert found - {f"tba/objectives/{kind}.py"} <= files_of("A new objective")


def test_lists_of_kinds_agree() -> None:
    """A kind that is missing from one of them would be half there."""
    assert {line.split()[0] for line in task_lines()} == TASK_KINDS
    assert {model.model_fields["kind"].default for model in TASKS if "data" in model.model_fields} == KINDS_WITH_DATA
