"""scripts/check_package.py: a distribution that lacks a file of the package, or holds another one, is told."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = spec_from_file_location("check_package", ROOT / "scripts" / "check_package.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_contents_are_those_of_the_package(script: ModuleType) -> None:
    files = [path for path in (ROOT / "tba").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    whole = {path.relative_to(ROOT).as_posix() for path in files}
    assert script.faults_of_contents(whole, ()) == []
    stray = {"tests/test_pages.py", "tba/__pycache__/cli.cpython-311.pyc"}
    assert script.faults_of_contents((whole - {"tba/py.typed"}) | stray, ()) == [
        "tba/py.typed is missing",
        "tba/__pycache__/cli.cpython-311.pyc should not be inside",
        "tests/test_pages.py should not be inside",
    ]
    assert script.faults_of_contents(whole, script.BESIDE) == [f"{name} is missing" for name in sorted(script.BESIDE)]
