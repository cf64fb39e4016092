"""Every ready configuration loads and validates."""

from __future__ import annotations

from pathlib import Path

import pytest

from tba.config.settings import load_config, to_toml

FOLDER = Path(__file__).parents[2] / "configs"
FILES = sorted(FOLDER.rglob("*.toml"))


def test_there_are_configurations() -> None:
    assert {"smollm2-addition", "smollm2-gsm8k", "gsm8k-rho1b", "math-qwen2.5-7b"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_configuration_loads_and_its_resolved_form_is_the_same(path: Path, tmp_path: Path) -> None:
    config = load_config(path, {})
    resolved = tmp_path / "config.toml"
    resolved.write_text(to_toml(config), "utf-8")
    assert load_config(resolved, {}) == config
    assert load_config(path, {"run": {"seed": 1}}).run.seed == 1


@pytest.mark.parametrize("path", sorted((FOLDER / "paper").glob("*.toml")), ids=lambda path: path.stem)
def test_those_of_the_paper_say_that_their_hardware_is_not_used(path: Path) -> None:
    opening = " ".join(path.read_text("utf-8").partition("\n[")[0].replace("#", " ").split())
    assert "GPUs, on which nothing here has run yet" in opening
