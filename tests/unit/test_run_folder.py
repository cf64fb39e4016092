"""Who owns the folder of a run, what `--overwrite` may delete, and what a refused command leaves as it was."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tba import api
from tba.cli import main
from tba.config.settings import Config, to_toml
from tba.learn.checkpoint import save_checkpoint
from tba.runs import folder as run_folder
from tba.runs.folder import locked, new_run
from tba.runs.run_config import CONFIG, read_run_config
from tba.types import TbaError


def settings(root: Path, **sections: dict[str, object]) -> Config:
    return Config.embedded(run={"root": str(root), "name": "mine"}, **sections)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Everything in a folder, with the bytes of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else None
        for path in sorted(folder.rglob("*"))
    }


def fault(act: Callable[[], object]) -> str:
    with pytest.raises(TbaError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def begin(config: Config, *, overwrite: bool = False) -> None:
    with new_run(config, overwrite=overwrite):
        pass


def make_run(root: Path, *, step: int = 4) -> Path:
    """A run as a process leaves it, with a checkpoint."""
    run = root / "mine"
    begin(settings(root, trainer={"learning_rate": 0.125}))
    (run / "metrics.jsonl").write_text("{}\n")
    (run / "rollouts").mkdir()
    (run / "rollouts" / "part.parquet").write_bytes(b"data")
    save_checkpoint(run, step, save=lambda folder: (folder / "model").mkdir(), state={"step": step}, keep_last=1)
    return run


# ---------------------------------------------------------------------------------------------------------------------
# One owner
# ---------------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_held_is_neither_replaced_nor_entered(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with locked(run):
        before = contents(run)
        for act in (lambda: begin(settings(tmp_path), overwrite=True), lambda: locked(run).__enter__()):
            assert fault(act) == f"{run} is being run by another process: see tba status {run}"
        assert contents(run) == before
    begin(settings(tmp_path), overwrite=True)
    assert set(contents(run)) == {".lock", CONFIG}


def test_a_new_run_is_held_from_its_first_moment_to_its_last(tmp_path: Path) -> None:
    for overwrite in (False, True):
        with new_run(settings(tmp_path), overwrite=overwrite) as run:
            assert "is being run" in fault(lambda: begin(settings(tmp_path), overwrite=True))
            assert "exists already" in fault(lambda: begin(settings(tmp_path)))
            assert "is being run" in fault(lambda run=run: locked(run).__enter__())
    with locked(run):
        pass


def test_replacing_a_run_keeps_the_file_that_all_contend_for(tmp_path: Path) -> None:
    """A process may have opened the lock just before the run was replaced."""
    run = make_run(tmp_path)
    with open(run / ".lock") as opened:
        with new_run(settings(tmp_path), overwrite=True), pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert "is being run" in fault(lambda: begin(settings(tmp_path), overwrite=True))


def test_of_many_that_overwrite_at_once_one_at_a_time_owns_the_folder(tmp_path: Path) -> None:
    num_threads, num_tries = 4, 40
    owners: list[int] = []
    wrong: list[str] = []
    together = threading.Barrier(num_threads)

    def contend(index: int) -> None:
        config = settings(tmp_path, trainer={"num_steps": 1000 + index})
        together.wait()
        for _ in range(num_tries):
            try:
                with new_run(config, overwrite=True) as run:
                    owners.append(index)
                    (run / "metrics.jsonl").write_text(str(index))
                    if len(owners) != 1 or read_run_config(run) != config:
                        wrong.append(f"{owners} in the folder of {index}")
                    if set(os.listdir(run)) != {".lock", CONFIG, "metrics.jsonl"}:
                        wrong.append(f"not emptied: {os.listdir(run)}")
                    owners.remove(index)
            except TbaError as error:
                if "is being run" not in str(error):
                    wrong.append(str(error))

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_run_made_between_folder_and_lock_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = settings(tmp_path, trainer={"num_steps": 1234})
    lock = run_folder.locked

    @contextmanager
    def late(run: Path) -> Iterator[None]:
        monkeypatch.setattr(run_folder, "locked", lock)
        begin(other, overwrite=True)
        with lock(run):
            yield

    monkeypatch.setattr(run_folder, "locked", late)
    assert "exists already" in fault(lambda: begin(settings(tmp_path)))
    assert read_run_config(tmp_path / "mine") == other


def test_the_lock_of_a_folder_that_was_removed_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path)

    def late(descriptor: int, how: int) -> None:
        shutil.rmtree(run)
        fcntl.flock(descriptor, how)

    names = {"LOCK_EX": fcntl.LOCK_EX, "LOCK_NB": fcntl.LOCK_NB}
    monkeypatch.setattr(run_folder, "fcntl", SimpleNamespace(flock=late, **names))
    assert "was removed" in fault(lambda: locked(run).__enter__())


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "precious").write_text("years of work")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(tmp_path / "precious")
    assert f"cannot lock {run}" in fault(lambda: locked(run).__enter__())
    assert (tmp_path / "precious").read_text() == "years of work"


# ---------------------------------------------------------------------------------------------------------------------
# What may be deleted
# ---------------------------------------------------------------------------------------------------------------------

HUGO = 'baseURL = "https://example.org/"\ntitle = "My site"\n'
NO_RUNS: dict[str, dict[str, str]] = {
    "a site": {CONFIG: HUGO, "content/thesis.md": "years of work"},
    "a site with a folder of our name": {CONFIG: HUGO, "checkpoints/thesis.md": "years of work"},
    "settings written by hand": {CONFIG: 'model = "arithmetic"\n', "rewards.py": "years of work"},
    "whole settings and no mark": {CONFIG: to_toml(Config.embedded()), "rewards.py": "years of work"},
    "whole settings alone": {CONFIG: to_toml(Config.embedded())},
    "settings cut short": {CONFIG: to_toml(Config.embedded())[:300], ".lock": "", "thesis.md": "years of work"},
    "settings that are not TOML": {CONFIG: "[", ".lock": "", "thesis.md": "years of work"},
    "no settings": {"metrics.jsonl": "", "thesis.md": "years of work"},
    "no settings but a lock": {".lock": "", "thesis.md": "years of work"},
}


def write_all(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("kind", NO_RUNS)
def test_what_is_not_a_run_is_neither_removed_nor_changed(tmp_path: Path, kind: str) -> None:
    write_all(tmp_path / "mine", NO_RUNS[kind])
    before = contents(tmp_path)
    assert "is not a run" in fault(lambda: begin(settings(tmp_path), overwrite=True))
    assert contents(tmp_path) == before


HALF_MADE: dict[str, dict[str, str]] = {
    "nothing": {},
    "a lock": {".lock": ""},
    "settings half written": {".lock": "", ".config.toml.partial": "[run]"},
    "settings": {".lock": "", CONFIG: to_toml(Config.embedded())},
    "logs": {".lock": "", CONFIG: to_toml(Config.embedded()), "logs/trainer.log": "no such model"},
    "half replaced": {".lock": "", CONFIG: to_toml(Config.embedded()), ".replaced-x/metrics.jsonl": "{}"},
}


@pytest.mark.parametrize("kind", HALF_MADE)
def test_a_run_whose_start_failed_can_be_replaced(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine").mkdir()
    write_all(tmp_path / "mine", HALF_MADE[kind])
    config = settings(tmp_path, trainer={"num_steps": 1234})
    begin(config, overwrite=True)
    assert set(contents(tmp_path / "mine")) == {".lock", CONFIG}
    assert read_run_config(tmp_path / "mine") == config
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize("target", ["a run", "nowhere"])
def test_a_link_in_place_of_the_folder_is_told(tmp_path: Path, target: str, overwrite: bool) -> None:
    elsewhere = make_run(tmp_path / "elsewhere") if target == "a run" else tmp_path / "nowhere"
    (tmp_path / "mine").symlink_to(elsewhere)
    before = contents(tmp_path)
    line = fault(lambda: begin(settings(tmp_path), overwrite=overwrite))
    assert ("symbolic link" if overwrite else "exists already") in line
    assert contents(tmp_path) == before


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("years of work")
    assert "is not a run" in fault(lambda: begin(settings(tmp_path), overwrite=True))
    assert (tmp_path / "mine").read_text() == "years of work"


def test_links_within_a_run_are_removed_and_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    precious = tmp_path / "precious"
    write_all(precious, {"thesis.md": "years of work"})
    shutil.rmtree(run / "rollouts")
    (run / "rollouts").symlink_to(precious)
    begin(settings(tmp_path), overwrite=True)
    assert set(contents(run)) == {".lock", CONFIG}
    assert (precious / "thesis.md").exists()


@pytest.mark.parametrize("failing", ["open", "rename", "replace"])
def test_a_run_that_cannot_be_replaced_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    run = make_run(tmp_path)
    before = contents(run)
    real, calls = getattr(os, failing), []

    def fail(path: object, *rest: object, **others: object) -> object:
        calls.append(path)
        # The lock may be opened; the second entry to be moved cannot.
        if ".partial" in str(path) or (failing == "rename" and len(calls) == 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(path, *rest, **others)

    with monkeypatch.context() as patched:
        patched.setattr(os, failing, fail)
        assert "No space left" in fault(lambda: begin(settings(tmp_path), overwrite=True))
    after = contents(run)
    after.pop(".config.toml.partial", None)
    assert after == before
    begin(settings(tmp_path), overwrite=True)
    assert set(contents(run)) == {".lock", CONFIG}


# ---------------------------------------------------------------------------------------------------------------------
# Resuming
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Runs that would be launched, by their settings. Each must be held."""
    found: list[Config] = []

    def launch(config: Config, run: Path, *others: object) -> api.Result:
        assert "is being run" in fault(lambda: locked(run).__enter__())
        assert read_run_config(run) == config
        found.append(config)
        return api.Result(run, True)

    monkeypatch.setattr(api, "_launch", launch)
    return found


REFUSED = {
    "held by another process": ["--trainer.learning-rate", "0.5"],
    "nothing left to do": ["--trainer.learning-rate", "0.5", "--trainer.num-steps", "4"],
    "a fixed setting": ["--run.seed", "5"],
    "a reward that is not there": ["--reward", "no_such_module:f"],
    "an unknown setting": ["--trainer.lerning-rate", "0.5"],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_refused_resume_changes_nothing(
    tmp_path: Path, launched: list[Config], capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = make_run(tmp_path)
    before = contents(run)
    words = ["train", "--resume", str(run), *REFUSED[kind]]
    if kind == "held by another process":
        with locked(run):
            assert main(words) == 2
    else:
        assert main(words) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tba: ")
    assert contents(run) == before
    assert launched == []


@pytest.mark.parametrize("name", ["mine", "mine/checkpoints/step-000004"])
def test_a_resume_holds_the_run_and_keeps_what_was_changed(tmp_path: Path, launched: list[Config], name: str) -> None:
    run = make_run(tmp_path)
    api.resume(tmp_path / name, {"trainer": {"num_steps": 1234}})
    api.resume(tmp_path / name)
    assert [config.trainer.num_steps for config in launched] == [1234, 1234]
    assert read_run_config(run).trainer.learning_rate == 0.125


def test_a_start_is_held_too(tmp_path: Path, launched: list[Config]) -> None:
    config = settings(tmp_path)
    api.start(config)
    api.start(config, overwrite=True)
    assert launched == [config, config]


@pytest.mark.parametrize("files", [{}, {CONFIG: to_toml(Config.embedded())}, {"checkpoints/step-000004/x": ""}])
def test_what_cannot_be_resumed_is_left_without_a_lock(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "mine").mkdir()
    write_all(tmp_path / "mine", files)
    before = contents(tmp_path)
    fault(lambda: api.resume(tmp_path / "mine"))
    if "checkpoints/step-000004/x" in files:
        fault(lambda: api.resume(tmp_path / "mine" / "checkpoints" / "step-000004"))
    assert contents(tmp_path) == before
