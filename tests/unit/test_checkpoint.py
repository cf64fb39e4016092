from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from tba.learn.checkpoint import CHECKPOINTS, Checkpoint, find_checkpoint, list_checkpoints, save_checkpoint
from tba.types import TbaError

TENSORS = {"moment/a": torch.arange(6.0).view(2, 3), "step/a": torch.tensor(3.0)}
STATE = {"step": 3, "rng": {"state": 2**127 + 1}, "searchers": [{"cursor": 4}], "elapsed": 1.5}


def save_model(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}", "utf-8")
    (path / "model.safetensors").write_bytes(bytes(range(256)) * 10)


def save(
    run: Path, step: int, *, keep_last: int = 2, model: Callable[[Path], None] = save_model, tensors: dict | None = None
) -> Checkpoint:
    (run / "config.toml").touch()

    def learner(folder: Path) -> None:
        model(folder / "model")
        save_file(TENSORS if tensors is None else tensors, folder / "state/tensors.safetensors")

    return save_checkpoint(run, step, save=learner, state={**STATE, "step": step}, keep_last=keep_last)


def steps(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run)]


def names(run: Path) -> set[str]:
    """Everything in the folder of checkpoints, hidden things too."""
    folder = run / CHECKPOINTS
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def test_what_was_saved_is_found(tmp_path: Path) -> None:
    saved = save(tmp_path, 3)
    assert saved.path == tmp_path / "checkpoints" / "step-000003"
    run, found = find_checkpoint(tmp_path)
    assert (run, found) == (tmp_path, saved)
    assert (found.step, found.model) == (3, saved.path / "model")
    assert found.state() == {**STATE, "step": 3}
    assert_close(load_file(found.path / "state/tensors.safetensors"), TENSORS, rtol=0, atol=0)
    assert found.damage() is None
    assert names(tmp_path) == {"step-000003"}


@pytest.mark.parametrize(
    "error", [OSError("no space"), SafetensorError("no space"), RuntimeError(), KeyboardInterrupt()]
)
def test_a_save_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    save(tmp_path, 1)

    def fail(path: Path) -> None:
        save_model(path)
        raise error

    with pytest.raises(type(error)):
        save(tmp_path, 2, model=fail)
    assert names(tmp_path) == {"step-000001"}
    assert find_checkpoint(tmp_path)[1].step == 1


def test_a_full_disk_is_an_error_of_the_system_whoever_met_it(tmp_path: Path) -> None:
    """The Trainer stops in order on a full disk, and most of a checkpoint is written by safetensors."""

    def fail(path: Path) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path, 1, model=fail)
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == set()


def test_state_that_is_not_plain_data_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        save_checkpoint(
            tmp_path, 1, save=lambda folder: save_model(folder / "model"), state={"x": object()}, keep_last=1
        )
    assert names(tmp_path) == set()


def test_a_half_written_checkpoint_does_not_count(tmp_path: Path) -> None:
    """A process killed while it saves leaves a folder under another name; the next save removes it."""
    save(tmp_path, 1)
    shutil.copytree(tmp_path / CHECKPOINTS / "step-000001", tmp_path / CHECKPOINTS / ".step-000002.partial")
    assert find_checkpoint(tmp_path)[1].step == 1
    save(tmp_path, 3)
    assert names(tmp_path) == {"step-000001", "step-000003"}


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    save(tmp_path, 1)

    def other_model(path: Path) -> None:
        save_model(path)
        (path / "more.json").write_text("[]", "utf-8")

    again = save(tmp_path, 1, model=other_model)
    assert (again.model / "more.json").exists()
    assert again.damage() is None
    assert names(tmp_path) == {"step-000001"}


@pytest.mark.parametrize("keep_last", [1, 2, 3])
def test_the_newest_are_kept(tmp_path: Path, keep_last: int) -> None:
    for step in (1, 2, 10, 100):
        save(tmp_path, step, keep_last=keep_last)
    assert steps(tmp_path) == [1, 2, 10, 100][-keep_last:]


@pytest.mark.parametrize(
    ("interval", "kept"),
    [
        (None, [14, 16]),
        (4, [4, 8, 12, 14, 16]),
        (5, [6, 10, 14, 16]),
        (100, [14, 16]),
        (1, [2, 4, 6, 8, 10, 12, 14, 16]),
    ],
)
def test_the_first_of_every_interval_is_kept_for_good(tmp_path: Path, interval: int | None, kept: list[int]) -> None:
    """Checkpoints are written at syncs: the first at or after each multiple is the one that stays (14 is the newest but
    one, and 16 the first after 15)."""
    (tmp_path / "config.toml").touch()
    for step in range(2, 17, 2):
        save_checkpoint(tmp_path, step, save=lambda f: None, state={}, keep_last=2, keep_interval=interval)
    assert steps(tmp_path) == kept


@pytest.mark.parametrize("keep_last", [1, 2, 5])
def test_a_run_that_went_back_leaves_what_was_ahead(tmp_path: Path, keep_last: int) -> None:
    """Resumed from step 100, a run saves step 150: step 200 is of a past it has left, and must not be resumed."""
    for step in (100, 200):
        save(tmp_path, step, keep_last=5)
    saved = save(tmp_path, 150, keep_last=keep_last)
    assert saved.damage() is None
    assert steps(tmp_path) == [100, 150][-keep_last:]
    assert find_checkpoint(tmp_path)[1].step == 150


def test_more_steps_than_six_digits_sort_by_number(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    assert steps(tmp_path) == [999_999, 1_000_000]
    assert find_checkpoint(tmp_path)[1].step == 1_000_000


FILES = ["model/config.json", "model/model.safetensors", "state/state.json", "state/tensors.safetensors"]


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_guarded(tmp_path: Path, file: str) -> None:
    checkpoint = save(tmp_path, 1)
    assert sorted(str(p.relative_to(checkpoint.path)) for p in checkpoint.path.rglob("*") if p.is_file()) == sorted(
        [*FILES, "state/manifest.json"]
    )
    path = checkpoint.path / file
    content = path.read_bytes()

    path.write_bytes(content[:-1])
    assert checkpoint.damage() == f"{file} does not have the bytes that were written"
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    assert checkpoint.damage() == f"{file} does not have the bytes that were written"
    path.unlink()
    assert checkpoint.damage() == f"{file} is missing"
    path.write_bytes(content)
    assert checkpoint.damage() is None


@pytest.mark.parametrize("content", ["[]", "null", "5", "{}"])
def test_a_manifest_that_lists_nothing_vouches_for_nothing(tmp_path: Path, content: str) -> None:
    checkpoint = save(tmp_path, 1)
    (checkpoint.path / "state/manifest.json").write_text(content)
    assert checkpoint.damage() == "state/manifest.json lists no files"


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff"])
def test_a_checkpoint_without_a_manifest_is_damaged(tmp_path: Path, content: bytes | None) -> None:
    checkpoint = save(tmp_path, 1)
    path = checkpoint.path / "state/manifest.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert checkpoint.damage() == "state/manifest.json is missing or unreadable"


def resume_fault(path: Path) -> str:
    with pytest.raises(TbaError) as caught:
        find_checkpoint(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_resuming_what_is_not_there_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert resume_fault(run) == f"{run} is not a run: there is no config.toml in it"
    run.mkdir()
    (run / "config.toml").touch()
    assert resume_fault(run) == f"{run} has no checkpoint to resume from: start it again with --overwrite"
    save(run, 1)
    named = run / CHECKPOINTS / "step-000002"
    assert resume_fault(named) == f"there is no checkpoint at {named}"


def test_a_checkpoint_may_be_named(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    assert find_checkpoint(tmp_path / CHECKPOINTS / "step-000001") == (
        tmp_path,
        Checkpoint(tmp_path / CHECKPOINTS / "step-000001"),
    )


def test_a_damaged_checkpoint_is_refused_and_the_newest_sound_one_offered(tmp_path: Path) -> None:
    first, second, third = (save(tmp_path, step, keep_last=3) for step in (1, 2, 3))
    (third.path / "state/state.json").write_text("{}", "utf-8")
    message = f"checkpoint {third.path} is damaged (state/state.json does not have the bytes that were written); "
    offer = "the newest sound one is {0}: tba train --resume {0}"
    assert resume_fault(tmp_path) == message + offer.format(second.path)
    (second.model / "model.safetensors").unlink()
    assert resume_fault(tmp_path) == message + offer.format(first.path)
    assert find_checkpoint(first.path) == (tmp_path, first)
    (first.path / "state/manifest.json").unlink()
    assert resume_fault(tmp_path) == message + "there is no other sound one in this run"
