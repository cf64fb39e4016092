"""The notebooks of examples/: they are kept without outputs, their code is sound, their settings exist."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tba.config.help import setting_names

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_reward", "stale_data"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    assert [(cell["outputs"], cell["execution_count"]) for cell in code_of(path)] == [([], None)] * len(code_of(path))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_settings_given_to_train_exist(path: Path) -> None:
    tree = ast.parse("\n".join("".join(cell["source"]) for cell in code_of(path)))
    [call] = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "tba.train"]
    sections = {keyword.arg: keyword.value for keyword in call.keywords if isinstance(keyword.value, ast.Dict)}
    given = {
        f"{section}.{key.value}"
        for section, values in sections.items()
        for key in values.keys
        if isinstance(key, ast.Constant)
    }
    assert len(given) > 8
    assert given <= set(setting_names())
