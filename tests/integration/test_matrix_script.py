"""scripts/test_matrix.py: a run is reported as it went."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "test_matrix.py"


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("test_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RESULTS", tmp_path / "results.jsonl")
    return module


@pytest.mark.parametrize("setting", ["aten-avx2", "aten-avx2+rounding", "busy"])
def test_a_run_that_passes(matrix: ModuleType, setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert matrix.run(setting, ["tests/unit/test_schedules.py"], jobs="0")
    [record] = map(json.loads, matrix.RESULTS.read_text("utf-8").splitlines())
    assert (record["setting"], record["passed"], record["failures"]) == (setting, True, [])
    assert f"order {record['order_seed']:6}" in capsys.readouterr().out


def test_a_run_that_fails(matrix: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert not matrix.run("plain", ["tests/unit/test_schedules.py::no_such_test"], jobs="0")
    [record] = map(json.loads, matrix.RESULTS.read_text("utf-8").splitlines())
    assert not record["passed"]
    assert "FAILED" in capsys.readouterr().out
    [output] = matrix.RESULTS.parent.glob("*.txt")
    assert "no_such_test" in output.read_text("utf-8")


def test_the_tests_that_failed_are_named(matrix: ModuleType) -> None:
    summary = "FAILED a/b.py::test_x[llama, tied - no] - assert 1 == 2\nERROR a/b.py::test_y - ValueError\n3 failed\n"
    assert matrix.failures(summary) == ["a/b.py::test_x[llama, tied - no]", "a/b.py::test_y"]


def test_busy_cores_are_idle_again(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    popen = matrix.subprocess.Popen
    monkeypatch.setattr(matrix.subprocess, "Popen", lambda *words: started.append(popen(*words)) or started[-1])
    with matrix.busy_cores(True):
        assert started
        assert all(process.poll() is None for process in started)
    assert all(process.poll() is not None for process in started)


def test_an_unknown_setting_is_refused(matrix: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["test_matrix.py", "--only", "plain+sparc"])
    with pytest.raises(SystemExit) as ended:
        matrix.main()
    assert ended.value.code == 2
