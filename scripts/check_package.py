"""Builds the source distribution, and a wheel from it; checks what is inside; tries the wheel from another folder.

Needs no network: it builds with the setuptools that is here, and the wheel finds its dependencies in this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILT_FROM = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "tba", "tests")
"""The tests are there to be left out."""
BESIDE = {"LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
"""What a source distribution has beside the package and its `egg-info`."""
NEEDED = {
    *("tba/py.typed", "tba/embedded.toml", "tba/configs/smollm2-addition.toml", "tba/configs/paper/gsm8k-rho1b.toml"),
    *("tba/models/arithmetic/model.safetensors", "tba/models/arithmetic/tokenizer.json", "tba/cli.py"),
}
"""The guard of the comparison with the folder of the package."""
QUICK_RUN = (
    *("train", "--run.launcher", "inline", "--run.name", "smoke", "--run.display", "plain", "--trainer.num-steps", "2"),
    *("--trainer.num-groups", "2", "--searcher.prompts-per-batch", "2", "--evaluation.num-prompts", "2"),
    *("--run.num-threads", "1"),
)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tba-package-") as folder:
        scratch = Path(folder)
        sdist = build("sdist", copied_tree(scratch / "source"), scratch / "dist")
        wheel = build("wheel", unpacked(sdist, scratch / "unpacked"), scratch / "dist")
        faults = [f"{sdist.name}: {fault}" for fault in faults_of_contents(names_in_sdist(sdist), BESIDE)]
        faults += [f"{wheel.name}: {fault}" for fault in faults_of_contents(names_in_wheel(wheel), ())]
        for fault in faults:
            print(fault, file=sys.stderr)
        if faults:
            return 1
        try_wheel(wheel, scratch)
    print(f"{sdist.name} and {wheel.name} build, hold the package and nothing else, and run")
    return 0


def copied_tree(target: Path) -> Path:
    """What a build reads, without what other builds and runs have left in this folder."""
    target.mkdir()
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, target / name)
    (target / "tba/__pycache__").mkdir()
    (target / "tba/__pycache__/stray.cpython-311.pyc").touch()
    return target


def build(kind: str, source: Path, target: Path) -> Path:
    """By the project's own build backend, as pip would."""
    target.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(target)!r}))"
    told = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True)
    if told.returncode:
        sys.exit(f"the {kind} cannot be built:\n{told.stdout}{told.stderr}")
    return target / told.stdout.splitlines()[-1]


def unpacked(sdist: Path, target: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(target, filter="data")
    [folder] = target.iterdir()
    return folder


def names_in_sdist(sdist: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    return {name for name in names if ".egg-info/" not in name}


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def faults_of_contents(names: Collection[str], beside: Collection[str]) -> list[str]:
    """A line for each file that is missing, and for each that should not be there."""
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tba").rglob("*") if path.is_file()}
    expected = {name for name in package if "__pycache__" not in name} | NEEDED | set(beside)
    faults = [f"{name} is missing" for name in sorted(expected - set(names))]
    return faults + [f"{name} should not be inside" for name in sorted(set(names) - expected)]


def try_wheel(wheel: Path, scratch: Path) -> None:
    """Install it into a folder, and use it from another one."""
    site, elsewhere = scratch / "site", scratch / "elsewhere"
    elsewhere.mkdir()
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    subprocess.run([*pip, "--target", str(site), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> str:
        told = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True)
        if told.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{told.stdout}{told.stderr}")
        return told.stdout

    tba = str(site / "bin" / "tba")
    where = run(sys.executable, "-c", "import tba; print(tba.__file__)").strip()
    assert Path(where).is_relative_to(site), f"another tba was tried: {where}"
    assert "tba train" in run(tba, "--help")
    assert "SmolLM2-135M-Instruct" in run(tba, "config", "smollm2-addition")
    run(tba, *QUICK_RUN)
    assert (elsewhere / "runs/smoke/checkpoints/step-000002/model/config.json").is_file()


if __name__ == "__main__":
    sys.exit(main())
