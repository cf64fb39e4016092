"""Replays of whole runs: the same numbers from the same data, and other numbers from other settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rewards_for_tests import spec
from safetensors.torch import load_file
from small_runs import arguments, records, rollouts, small_config, tba, tba_here
from test_inline import INLINE, same_weights, train_records, weights

from tba.api import resume, start
from tba.cli import main
from tba.config.help import setting_names
from tba.launch.replay import replay_run
from tba.learn.trainer import Trainer
from tba.runs.compare import show_comparison
from tba.runs.replays import CHANGEABLE, is_changeable
from tba.types import TbaError

LEARNED_Z = {"kind": "trajectory_balance_learned_z", "log_z_learning_rate": 1e-2}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"searcher": {"num_searchers": 2}, "trainer": {"schedule": "cosine", "warmup_steps": 2}},
    "lora and learned log Z": {"model": {"lora_rank": 4, "lora_alpha": 8.0}, "objective": LEARNED_Z},
    "synchronous": {"trainer": {"synchronous": True, "sync_period": 1}},
    "staleness limit": {"trainer": {"max_staleness": 2}, "objective": {**LEARNED_Z, "beta": 0.1}},
    "small buffer": {"buffer": {"capacity": 16, "capacity_per_prompt": 4, "recent_fraction": 0.2}},
}


def state(run: Path, step: int) -> dict[str, torch.Tensor]:
    """What a checkpoint holds besides the model: the optimizer's moments, adapters, log Z."""
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "state" / "tensors.safetensors")


def without_buffer(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A replay has no buffer to tell of."""
    return [{k: v for k, v in record.items() if not k.startswith("buffer/")} for record in found]


def replayed(run: Path, name: str = "again", num_steps: int | None = None, **overrides: Any) -> Path:
    folder, finished = replay_run(run, {"run": {"name": name}, **overrides}, num_steps)
    assert finished
    assert folder == run.parent / name
    return folder


def assert_same(run: Path, again: Path, step: int = 8) -> None:
    assert train_records(again) == without_buffer(train_records(run))[:step]
    assert same_weights(weights(again, step), weights(run, step))
    assert same_weights(state(again, step), state(run, step))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An inline run, whose rewards differ wherever responses do. Its folder is never changed by a replay, so tests
    share it."""
    differing = {"reward": {"functions": spec("checksum")}, "engine": {"temperature": 2.0}}
    return start(small_config(tmp_path_factory.mktemp("replay"), "whole", run=INLINE, **differing)).run


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_repeats_an_inline_run_bit_for_bit(tmp_path: Path, kind: str) -> None:
    if "lora" in kind:
        pytest.importorskip("peft")
    run = start(small_config(tmp_path, "run", run=INLINE, **KINDS[kind])).run
    assert_same(run, replayed(run))


def test_a_replay_repeats_a_run_that_was_interrupted_and_resumed(tmp_path: Path) -> None:
    """As after kill -9: later checkpoints are gone, but log, draws and metrics run on."""
    run = start(small_config(tmp_path, "run", run=INLINE, checkpoint={"period": 2})).run
    for later in (6, 8):
        shutil.rmtree(run / "checkpoints" / f"step-{later:06d}")
    with open(run / "draws.jsonl", "ab") as file:
        file.write(b'{"step":9,"rows":[[1,')
    resume(run)
    steps = [json.loads(line)["step"] for line in (run / "draws.jsonl").read_text().splitlines()]
    assert steps == list(range(1, 9))
    assert_same(run, replayed(run))


def test_settings_that_changed_at_a_resume_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start(small_config(tmp_path, "run", run=INLINE, trainer={"schedule": "linear", "num_steps": 4})).run
    note = "settings changed when it was resumed"
    replay_run(run, {"run": {"name": "before"}})
    assert note not in capsys.readouterr().out
    resume(run, {"trainer": {"num_steps": 6}})
    replay_run(run, {"run": {"name": "after"}})
    assert note in capsys.readouterr().out


def test_draws_name_rows_of_the_log_as_pandas_reads_it(whole: Path) -> None:
    frame = rollouts(whole)
    draws = [json.loads(line) for line in (whole / "draws.jsonl").read_text().splitlines()]
    assert [draw["step"] for draw in draws] == list(range(1, 9))
    for draw, record in zip(draws, records(whole, "train"), strict=True):
        drawn = [frame.iloc[rows] for rows in draw["rows"]]
        assert [len(group) for group in drawn] == [4, 4]
        assert all(group["prompt_id"].nunique() == 1 for group in drawn)
        assert sum(group["tokens"].map(len).sum() for group in drawn) == record["tokens"]
        assert sum(group["reward"].sum() for group in drawn) / 8 == pytest.approx(record["reward"])


def test_two_replays_are_equal(whole: Path) -> None:
    changes = {"objective": {"beta": 0.2}, "trainer": {"learning_rate": 3e-4}}
    one, other = replayed(whole, "one", **changes), replayed(whole, "other", **changes)
    assert train_records(one) == train_records(other)
    assert same_weights(weights(one, 8), weights(other, 8))


def test_a_replay_repeats_the_losses_of_an_asynchronous_run_that_was_resumed(tmp_path: Path) -> None:
    """Processes, two Searchers, a checkpoint lost and the data after it kept: the order of all of it is in the log."""
    config = small_config(
        tmp_path,
        "run",
        searcher={"num_searchers": 2},
        checkpoint={"period": 2},
        trainer={"schedule": "constant"},  # more steps change nothing else
    )
    run = tmp_path / "run"
    first = tba_here("train", *arguments(config))
    assert first.returncode == 0, first.stdout + first.stderr
    for later in (6, 8):
        shutil.rmtree(run / "checkpoints" / f"step-{later:06d}")
    again = tba_here("train", "--resume", str(run), "--trainer.num-steps", "12")
    assert again.returncode == 0, again.stdout + again.stderr
    # By the command line too: the run's processes and the replay compute with the same kernels, whatever this one has.
    repeated = tba("replay", str(run), "--run.name", "again", "--run.num-threads", "1")
    assert repeated.returncode == 0, repeated.stdout + repeated.stderr
    recorded, replay = train_records(run), train_records(tmp_path / "again")
    assert [r["step"] for r in replay] == list(range(1, 13))
    for before, after in zip(recorded, replay, strict=True):
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)
        for name in ("reward", "tokens", "staleness/counts", "completions/mean_length"):
            assert after[name] == before[name]


@pytest.mark.parametrize(
    "changes", [{"trainer": {"learning_rate": 1e-4}}, {"objective": {"beta": 0.2}}, {"trainer": {"max_grad_norm": 0.1}}]
)
def test_other_settings_change_what_is_learned_and_not_the_data(
    whole: Path, changes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    again = replayed(whole, f"changed-{request.node.callspec.id}", **changes)
    before, after = train_records(whole), train_records(again)
    data = ("reward", "reward_std", "tokens", "num_tokens", "staleness/counts", "completions/mean_length")
    assert [[r[name] for name in data] for r in after] == [[r[name] for name in data] for r in before]
    if "trainer" in changes:
        assert after[0]["loss"] == before[0]["loss"], "the first step starts from the same weights"
    assert [r["loss"] for r in after[1:]] != [r["loss"] for r in before[1:]]
    assert not same_weights(weights(again, 8), weights(whole, 8))


def test_fewer_steps_leave_schedules_as_they_are_unless_the_setting_is_changed(tmp_path: Path) -> None:
    run = start(small_config(tmp_path, "run", run=INLINE, trainer={"schedule": "linear"})).run
    assert_same(run, replayed(run, "first four", 4), step=4)
    shorter = replayed(run, "shorter", trainer={"num_steps": 4})
    rates = [r["learning_rate"] for r in train_records(shorter)]
    assert rates == pytest.approx([1e-3 * (1 - step / 4) for step in range(4)])
    assert [r["learning_rate"] for r in train_records(run)][:4] != rates


def test_a_run_that_goes_on_is_replayed_to_its_last_whole_step(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "going on"
    shutil.copytree(whole, run)
    lines = (run / "draws.jsonl").read_bytes().splitlines(keepends=True)
    (run / "draws.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:10])
    (run / "summary.json").unlink()
    assert_same(whole, replayed(run), step=4)


def test_a_replay_leaves_the_run_as_it_was_and_a_run_of_its_own(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def content(folder: Path) -> dict[Path, Any]:
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}

    before = content(whole)
    words = ["--run.root", str(tmp_path), "--run.name", "own", "--checkpoint.period", "4"]
    assert main(["replay", str(whole), *words]) == 0
    assert content(whole) == before
    run = tmp_path / "own"
    shown = capsys.readouterr().out
    assert "8/8 steps" in shown
    assert "Largest relative difference between the two losses of a step: 0" in shown
    assert f"tba eval {run / 'checkpoints' / 'step-000008' / 'model'}" in shown.replace("\n", "")
    assert {p.name for p in run.iterdir()} == {
        *(".lock", "checkpoints", "config.toml", "metrics.jsonl", "processes", "replay.json", "summary.json"),
    }
    assert [p.name for p in sorted((run / "checkpoints").iterdir())] == ["step-000004", "step-000008"]
    assert {r["kind"] for r in records(run)} == {"train", "event"}
    assert {r["event"] for r in records(run, "event")} <= {"process_ended", "alarm", "alarm_cleared"}
    assert not [name for r in records(run) for name in r if name.startswith("buffer/")]
    assert main(["eval", str(run / "checkpoints" / "step-000008" / "model"), "--output", str(tmp_path / "x")]) == 0
    assert main(["status", str(run)]) == 0
    assert "step 8 of 8" in capsys.readouterr().out
    show_comparison([whole, run])
    table = capsys.readouterr().out
    assert "│ loss " in table
    [rewards] = [line for line in table.splitlines() if "reward of new" in line]
    assert "–" in rewards


def test_a_picture_of_a_run_and_its_replay_is_drawn(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    show_comparison([whole, replayed(whole, "drawn")], tmp_path / "both.png")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(TbaError, match="nothing to draw"):
        show_comparison([whole.parent / "drawn"], tmp_path / "none.png")


def test_a_replay_cannot_be_resumed_or_replayed(whole: Path) -> None:
    run = replayed(whole, "final", 2)
    with pytest.raises(TbaError, match="is a replay"):
        resume(run)
    with pytest.raises(TbaError, match=r"no draws\.jsonl"):
        replay_run(run, {})


def test_ctrl_c_saves_and_ends_the_replay(
    whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_step = Trainer.train_step

    def interrupted_at_step_3(trainer: Trainer, *arguments: Any) -> dict[str, Any]:
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(trainer, *arguments)

    monkeypatch.setattr(Trainer, "train_step", interrupted_at_step_3)
    assert main(["replay", str(whole), "--run.name", "stopped"]) == 130
    run = whole.parent / "stopped"
    assert "Stopped at step 3 of 8" in capsys.readouterr().out
    assert [r["step"] for r in records(run, "train")] == [1, 2, 3]
    assert (run / "checkpoints" / "step-000003" / "model").is_dir()
    assert json.loads((run / "summary.json").read_text())["steps"] == 3


# Mistakes.


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["replay", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" or captured.out.startswith("tba · ")
    [line] = captured.err.splitlines()
    assert line.startswith("tba: ")
    return line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--task", "addition"], "task.kind cannot change"),
        (["--task.num-train", "5"], "task.num_train cannot change"),
        (["--task.data", "x.jsonl"], "task.data cannot change"),
        (["--model", "elsewhere"], "model.path cannot change"),
        (["--reward", "json:dumps"], "reward.functions cannot change"),
        (["--engine.temperature", "0.5"], "engine.temperature cannot change"),
        (["--searcher.num-responses", "8"], "searcher.num_responses cannot change"),
        (["--buffer.recent-fraction", "0.1"], "buffer.recent_fraction cannot change"),
        (["--trainer.num-groups", "4"], "trainer.num_groups cannot change"),
        (["--trainer.group-size", "2"], "trainer.group_size cannot change"),
        (["--trainer.synchronous"], "trainer.synchronous cannot change"),
        (["--trainer.max-staleness", "9"], "trainer.max_staleness cannot change"),
        (["--trainer.sync-period", "4"], "trainer.sync_period cannot change"),
        (["--evaluation.period", "1"], "evaluation.period cannot change"),
        (["--run.seed", "1"], "run.seed cannot change"),
        (["--run.launcher", "local"], "run.launcher cannot change"),
        (["--run.seed", "1", "--engine.temperature", "2"], "run.seed, engine.temperature cannot change"),
        (["--trainer.num-steps", "9"], "recorded 8 steps, which is fewer than 9"),
        (["--steps", "9"], "recorded 8 steps, which is fewer than 9"),
        (["--steps", "0"], "--steps = '0'"),
        (["--steps", "many"], "--steps = 'many'"),
        (["--objective.betta", "1"], "did you mean objective.beta?"),
        (["--trainer.lerning-rate", "1"], "did you mean trainer.learning_rate?"),
        (["--objective.beta", "0"], "objective.beta"),
        (["--model.lora-rank", "2", "--model.lora-targets", "nonsense"], "model.lora_targets"),
        (["--run.name", "whole"], "whole exists already: choose another --run.name"),
    ],
)
def test_what_a_replay_cannot_do_is_one_line(
    whole: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    if "--model.lora-rank" in words:
        pytest.importorskip("peft")
    before = sorted(whole.parent.iterdir())
    assert named in complaint(capsys, str(whole), *words)
    assert sorted(whole.parent.iterdir()) == before, "nothing is left of a replay that could not begin"


def test_a_run_to_replay_must_be_named_and_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name the run" in complaint(capsys)
    assert "no config.toml" in complaint(capsys, str(tmp_path))


@pytest.mark.parametrize("kind", ["no draws", "damaged draw", "no log", "short log", "damaged log"])
def test_damaged_recordings_are_one_line(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    last = sorted((run / "rollouts").glob("*.parquet"))[-1]
    if kind == "no draws":
        (run / "draws.jsonl").unlink()
    elif kind == "damaged draw":
        (run / "draws.jsonl").write_bytes((run / "draws.jsonl").read_bytes().replace(b'"step":3', b'"stop":3'))
    elif kind == "no log":
        shutil.rmtree(run / "rollouts")
    elif kind == "short log":
        last.unlink()
    else:
        content = bytearray(last.read_bytes())
        content[len(content) // 3] ^= 0xFF
        last.write_bytes(content)
    expected = {
        "no draws": "only runs that record their draws",
        "damaged draw": "line 3 of",
        "no log": "has no row",
        "short log": "has no row",
        "damaged log": last.name,
    }
    assert expected[kind] in complaint(capsys, str(run))


def test_help_lists_what_can_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--objective.beta " in shown
    assert "--trainer.learning-rate" in shown
    assert "--searcher.num-searchers" not in shown


def test_what_can_change_is_a_setting_there_is() -> None:
    names = setting_names()
    for pattern in CHANGEABLE:
        assert any(is_changeable(name) and name.startswith(pattern.rstrip("*")) for name in names), pattern
