"""Bad input: one clear line, exit code 2, nothing started, nothing lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import small_config

from tba.api import start
from tba.cli import main


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("tba: ")
    assert not Path("runs").exists()
    return line


REWARD = "def length(completions, **columns):\n    return [float(len(c)) for c in completions]\n"
OWN = ("--model", "arithmetic", "--reward", "rewards:length", "--task.data")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "--trainer.lerning-rate", "1"], "trainer.lerning_rate"),
        (["train", "--trainer.num-steps", "many"], "trainer.num_steps"),
        (["train", "--trainer.num-steps"], "trainer.num_steps needs a value"),
        (["train", "--trainer.group-size", "32"], "searcher.num_responses"),
        (["train", "--buffer.recent-fraction", "1.5"], "buffer.recent_fraction"),
        (["train", "--buffer.capacity-per-prompt", "3"], "buffer.capacity_per_prompt"),
        (["train", "--reward.cut-off", "maybe"], "reward.cut_off = 'maybe': use score, drop, or a number"),
        (["train", "--engine.stop", '["a"'], "begins like a JSON list and is none"),
        (["train", "--objective.beta", "0"], "objective.beta"),
        (["train", "--objective.kind", "nowhere:Mine"], "objective.kind 'nowhere:Mine'"),
        (["train", "--objective.kind", "balance"], "unknown objective 'balance'"),
        (["train", "--task", "nonsense"], "one of arithmetic"),
        (["train", "no-such.toml"], "no-such.toml"),
        (["train", "stray", "words"], "words"),
        (["train", "--model", "./no-such-model"], "./no-such-model"),
        (["train", "--model", "arithmetic", "--task.data", "x.jsonl"], "reward is missing"),
        (["train", "--resume", "no-such-run"], "no-such-run"),
        (["train", "--resume"], "--resume needs a value"),
        (["train", "--run.name", "../elsewhere"], "run.name"),
        (["eval"], "there is no run in runs"),
        (["eval", "some/model"], "the task is missing"),
        (["eval", "some/model", "--task.num-eval", "8"], "the task is missing"),
        (["runs", "no-such-folder"], "no-such-folder"),
        (["runs", "--lines"], "--lines"),
        (["status"], "there is no run in runs"),
        (["compare", "a", "b", "--x", "hours", "--plot", "p.png"], "minutes, steps, tokens"),
        (["compare", "a", "b", "--x", "steps"], "--plot"),
        (["eval", "./no-such-model"], "./no-such-model"),
        (["status", "no-such-run"], "no-such-run"),
        (["compare", "no-such-run"], "no-such-run"),
        (["nonsense"], "nonsense"),
        (["train", *OWN, "no-such.jsonl"], "no-such.jsonl"),
    ],
)
def test_the_line_names_what_to_change(capsys: pytest.CaptureFixture[str], words: list[str], named: str) -> None:
    Path("rewards.py").write_text(REWARD)
    assert named in complaint(capsys, *words)


@pytest.mark.parametrize(
    ("content", "named"),
    [("", "no rows"), ('{"query": "1+1="}\n', "prompt"), ('{"prompt": "1+1="}\n{broken\n', "line 2")],
)
def test_rows_are_checked_before_anything_starts(capsys: pytest.CaptureFixture[str], content: str, named: str) -> None:
    Path("rewards.py").write_text(REWARD)
    Path("rows.jsonl").write_text(content)
    line = complaint(capsys, "train", *OWN, "rows.jsonl")
    assert "rows.jsonl" in line
    assert named in line


@pytest.mark.parametrize("reward", ["no_such_module:f", "json:no_such_function", "json:__doc__"])
def test_a_reward_that_cannot_be_imported(capsys: pytest.CaptureFixture[str], reward: str) -> None:
    Path("rows.jsonl").write_text('{"prompt": "1+1="}\n{"prompt": "1+2="}\n')
    words = ["train", "--model", "arithmetic", "--task.data", "rows.jsonl", "--task.num-eval", "1", "--reward", reward]
    assert reward.split(":")[0] in complaint(capsys, *words)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ('{"prompt": "1+1=", "result": "2"}', "asks for 'answer'"),
        ('{"prompt": "1+1=", "answer": "2", "texts": "x"}', "column 'texts'"),
        ('{"prompt": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}', "the assistant"),
    ],
)
def test_what_a_reward_asks_for_is_checked_before_anything_starts(
    capsys: pytest.CaptureFixture[str], row: str, named: str
) -> None:
    Path("rows.jsonl").write_text(f"{row}\n" * 2)
    Path("asking.py").write_text("def right(texts, answer): return [float(a in t) for t, a in zip(texts, answer)]\n")
    words = ["--task.data", "rows.jsonl", "--task.num-eval", "1", "--reward", "asking.py:right"]
    assert named in complaint(capsys, "train", "--model", "arithmetic", *words)


def test_a_run_that_exists_is_refused_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = start(small_config(tmp_path / "kept", "mine", run={"launcher": "inline"}, trainer={"num_steps": 2})).run
    before = (run / "metrics.jsonl").read_bytes()
    words = ["train", "--run.root", str(run.parent), "--run.name", "mine"]
    line = complaint(capsys, *words)
    assert "--resume" in line
    assert "--overwrite" in line
    assert (run / "metrics.jsonl").read_bytes() == before
    finished = complaint(capsys, "train", "--resume", str(run))
    assert "num-steps" in finished


def test_overwrite_spares_what_is_not_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "precious" / "mine"
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("years of work")
    complaint(capsys, "train", "--overwrite", "--run.root", str(folder.parent), "--run.name", "mine")
    assert (folder / "thesis.txt").exists()


def test_a_damaged_checkpoint_is_named_and_a_sound_one_offered(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = small_config(tmp_path / "kept", "mine", run={"launcher": "inline"}, checkpoint={"period": 2})
    run = start(config).run
    weights = run / "checkpoints" / "step-000008" / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    line = complaint(capsys, "train", "--resume", str(run))
    assert "step-000008" in line
    assert "model.safetensors" in line
    assert "step-000006" in line


def test_a_script_that_starts_a_run_when_it_is_imported_is_told_so() -> None:
    Path("script.py").write_text("import tba\n\ntba.train(run={'display': 'none'})\n")
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode != 0
    assert "start it under `if __name__ == '__main__':`" in done.stderr
