"""Every ready configuration loads and validates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tba.config import load_config, parse_config, to_toml
from tba.config_text import read_toml

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.rglob("*.toml"))


def test_there_are_configurations() -> None:
    assert {"smollm2-addition", "smollm2-gsm8k", "gsm8k-rho1b", "math-qwen2.5-7b"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_it_loads_and_opens_with_what_it_is(path: Path) -> None:
    config = load_config(path, {})
    assert path.read_text("utf-8").startswith("# ")
    assert parse_config(read_toml(path), {"run": {"seed": 1}}).run.seed == 1
    assert config.task.kind in to_toml(config)


@pytest.mark.parametrize("path", sorted((FOLDER / "paper").glob("*.toml")), ids=lambda path: path.stem)
def test_those_of_the_paper_name_the_published_figure(path: Path) -> None:
    assert re.search(r"^# Published[^\n]*:", path.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", sorted((FOLDER / "paper").glob("*.toml")), ids=lambda path: path.stem)
def test_those_of_the_paper_say_that_their_hardware_is_not_used(path: Path) -> None:
    opening = " ".join(path.read_text("utf-8").partition("\n[")[0].replace("#", " ").split())
    assert "GPUs, which this version cannot use yet" in opening
