"""The notebooks of examples/: they are kept without outputs, their code is sound, their settings exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tba.api
from tba.config.settings import Config

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def code_of(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own_reward", "stale_data"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped(path: Path) -> None:
    assert [(cell["outputs"], cell["execution_count"]) for cell in code_of(path)] == [([], None)] * len(code_of(path))


class _StartedError(Exception):
    pass


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_run_has_sound_settings(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells are run up to the first run, which does not start. `make notebooks` runs all of them."""
    configs: list[Config] = []

    def start(config: Config, **more: Any) -> None:
        configs.append(config)
        raise _StartedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tba.api, "start", start)
    names: dict[str, Any] = {}
    code = "\n".join("".join(cell["source"]) for cell in code_of(path))
    with pytest.raises(_StartedError):
        exec(code, names)
    assert configs[0].run.launcher == "inline"
