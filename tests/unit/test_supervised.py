"""The supervised commands: what they are told, how data is split, and each of them on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from tba.cli import main
from tba.policy.policy import load_tokenizer
from tba.rewards.reward_model import RewardModel, check_reward_model
from tba.supervised.classifier import auc
from tba.supervised.options import ClassifierOptions, RewardModelOptions, SftOptions, parse_options
from tba.supervised.reward_model import prompt_key, split_pairs
from tba.supervised.sft import _example
from tba.tasks import custom, tldr
from tba.tasks.base import Problem
from tba.tasks.encoding import encoder
from tba.testing import save_tiny_model
from tba.types import Prompt, TbaError


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose padding is its end token, as in several real ones."""
    path = save_tiny_model(tmp_path_factory.mktemp("model"))
    tokenizer = load_tokenizer(str(path))
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(path)
    return str(path)


def summary(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "training.json").read_text())
    return values


# ---------------------------------------------------------------------------------------------------------------------
# What they are told
# ---------------------------------------------------------------------------------------------------------------------


def test_data_alone_is_rows_of_ones_own_and_a_task_has_its_settings() -> None:
    own = parse_options(SftOptions, "m", ["--data", "d", "--output", "o", "--batch-size", "4"])
    assert own.task == custom.Settings(data="d")
    assert own.batch_size == 4
    summaries = parse_options(
        SftOptions, "m", ["--task", "tldr", "--data", "d", "--task.max-prompt-tokens", "9", "--output", "o"]
    )
    assert summaries.task == tldr.Settings(data="d", max_prompt_tokens=9)


@pytest.mark.parametrize(
    ("kind", "line", "named"),
    [
        (SftOptions, "--output o", "data is missing"),
        (SftOptions, "--data d", "output is missing: set it with --output"),
        (SftOptions, "--data d --output o --epoch 3", "unknown setting epoch: did you mean epochs?"),
        (SftOptions, "--data d --output o --batch-size 0", "batch_size = '0'"),
        (RewardModelOptions, "--data d --output o --fold 2/2", "fold = '2/2' is not of the form INDEX/COUNT"),
        (ClassifierOptions, "--output o", "data is missing"),
    ],
)
def test_every_fault_is_one_line(kind: Any, line: str, named: str) -> None:
    with pytest.raises(TbaError) as error:
        parse_options(kind, "m", line.split())
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("command", ["sft", "reward-model", "classifier"])
def test_each_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert "--learning-rate  [2e-05]" in capsys.readouterr().out


def test_an_output_that_exists_is_kept(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "b"}])
    assert main(["sft", model, "--data", data, "--output", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_trl_is_named_when_it_is_missing(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tba.supervised.shared.installed", lambda package: False)
    data = write(tmp_path / "rows.jsonl", [{"prompt": "a", "completion": "b"}] * 2)
    words = ["sft", model, "--data", data, "--task.num-eval", "0", "--output", str(tmp_path / "out")]
    assert main(words) == 2
    assert "trajectory-balance[trl]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "row", "named"),
    [
        ("sft", {"prompt": "a"}, "no row has a demonstration"),
        ("reward-model", {"prompt": "a", "chosen": "b"}, "has no 'rejected'"),
        ("classifier", {"text": "a"}, "no columns 'text' and 'label'"),
        ("classifier", {"text": "a", "label": 1}, "do not show both labels"),
    ],
)
def test_rows_are_checked_before_anything_is_loaded(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str], command: str, row: dict[str, Any], named: str
) -> None:
    data = write(tmp_path / "rows.jsonl", [row] * 3)
    words = [command, model, "--data", data, "--output", str(tmp_path / "out")]
    assert main([*words, "--task.num-eval", "1"] if command != "classifier" else words) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------------------------------
# Splits and measures
# ---------------------------------------------------------------------------------------------------------------------


def pairs(num_prompts: int, per_prompt: int = 3) -> list[Problem]:
    return [
        Problem(Prompt(f"{i}-{j}", "", (1,)), f"post {i}", {"id": f"t{i}"})
        for i in range(num_prompts)
        for j in range(per_prompt)
    ]


def test_folds_and_held_out_pairs_share_no_prompt() -> None:
    parts = [part for fold in ("0/2", "1/2") for part in split_pairs(pairs(400), fold, 0.25)]
    keys = [{prompt_key(problem) for problem in part} for part in parts]
    assert len(set().union(*keys)) == sum(map(len, keys)) == 400, "every prompt is in exactly one part"
    assert sum(map(len, parts)) == 1200, "with all its pairs"
    assert all(100 < len(keys[i]) < 200 for i in (0, 2))
    assert all(25 < len(keys[i]) < 75 for i in (1, 3))


def test_without_an_id_the_prompt_itself_tells_pairs_apart() -> None:
    same = [Problem(Prompt(str(i), "", (1,)), "the post", {}) for i in range(2)]
    other = Problem(Prompt("2", "", (1,)), [{"role": "user", "content": "the post"}], {})
    assert prompt_key(same[0]) == prompt_key(same[1]) != prompt_key(other)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20))
def test_auc_is_the_chance_that_a_positive_is_above_a_negative(rows: list[tuple[int, bool]]) -> None:
    positive = [score for score, label in rows if label]
    negative = [score for score, label in rows if not label]
    if positive and negative:
        chance = np.mean([(p > n) + 0.5 * (p == n) for p in positive for n in negative])
        assert auc([score for score, _ in rows], [float(label) for _, label in rows]) == pytest.approx(chance)


def test_loss_falls_on_the_demonstration_and_its_end_though_padding_is_the_end(tmp_path: Path, model: str) -> None:
    tokenizer = load_tokenizer(model)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    rows = [{"prompt": "2+2=", "completion": "4"}]
    config = custom.Settings(data=write(tmp_path / "rows.jsonl", rows), num_eval=0)
    [problem] = config.load(encoder(tokenizer)).train
    example = _example(problem, tokenizer)
    assert example["input_ids"] == [*problem.prompt.tokens, *tokenizer("4").input_ids, tokenizer.eos_token_id]
    assert example["labels"] == [-100] * 4 + example["input_ids"][4:]


def test_a_completion_of_one_message_is_a_demonstration(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "completion": [{"role": "assistant", "content": "b"}]}, {"prompt": "a", "completion": 3}]
    config = custom.Settings(data=write(tmp_path / "rows.jsonl", rows), num_eval=0)
    task = config.load(lambda content: ("", (0,)))
    assert [problem.demonstration for problem in task.train] == ["b", None]


# ---------------------------------------------------------------------------------------------------------------------
# Each of them
# ---------------------------------------------------------------------------------------------------------------------

QUICK = ["--num-threads", "1", "--learning-rate", "1e-2", "--batch-size", "8"]


def test_sft_learns_to_answer_and_to_end(tmp_path: Path, model: str) -> None:
    pytest.importorskip("trl")
    from tba.engines.base import generate
    from tba.engines.transformers import TransformersEngine
    from tba.policy.policy import load_model

    data = write(tmp_path / "rows.jsonl", [{"prompt": f"{i % 7}?", "completion": "yes."} for i in range(72)])
    output = tmp_path / "out"
    words = ["sft", model, "--data", data, "--task.num-eval", "8", "--epochs", "4", "--output", str(output)]
    assert main([*words, *QUICK]) == 0
    values = summary(output)
    assert values["num_examples"] == 64
    assert values["num_held_out"] == 8
    assert values["loss_last"] < values["loss_first"]
    assert all(tensor.dtype == np.float32 for tensor in load_file(output / "model.safetensors").values())
    tokenizer = load_tokenizer(str(output))
    engine = TransformersEngine(load_model(str(output)), tokenizer, temperature=1.0, max_new_tokens=8, seed=0)
    [[answer]] = generate(engine, [Prompt("p", "", encoder(tokenizer)("3?")[1])], 1, greedy=True)
    assert answer.text == "yes."
    assert answer.finished


def test_a_reward_model_learns_what_was_chosen(tmp_path: Path, model: str) -> None:
    pytest.importorskip("trl")
    rows = [{"post": f"post {i}.", "chosen": "good " * (1 + i % 3), "rejected": "bad"} for i in range(80)]
    data = write(tmp_path / "pairs.jsonl", rows)
    output = tmp_path / "out"
    words = ["reward-model", model, "--task", "tldr", "--data", data, "--fold", "0/2", "--epochs", "4"]
    assert main([*words, "--held-out", "0.2", "--output", str(output), *QUICK]) == 0
    values = summary(output)
    assert values["held_out_accuracy"] == 1.0
    assert 0 < values["num_held_out"] < 20
    check_reward_model(str(output))
    tokenizer = load_tokenizer(str(output))
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    good, bad = RewardModel(str(output))(["POST: new.\n\nTL;DR:"] * 2, [" good", " bad"], [True, True])
    assert good > bad


def test_a_classifier_tells_its_labels_apart(tmp_path: Path, model: str) -> None:
    pytest.importorskip("trl")
    rows: list[dict[str, Any]] = [{"text": f"{'aaaa' if i % 2 else 'zz'} {i}", "label": i % 2} for i in range(80)]
    data = write(tmp_path / "rows.jsonl", [*rows, {"text": "unlabelled"}, {"text": "", "label": 1}])
    output = tmp_path / "out"
    words = ["classifier", model, "--data", data, "--held-out", "0.3", "--epochs", "4", "--output", str(output)]
    assert main([*words, *QUICK]) == 0
    values = summary(output)
    assert values["num_unlabelled"] == 2
    assert values["held_out_auc"] > 0.9
    config = json.loads((output / "config.json").read_text())
    assert len(config["id2label"]) == 1
    assert config["problem_type"] == "multi_label_classification"


def test_the_options_load_nothing_heavy() -> None:
    """`tba sft --help` and a wrong flag answer at once."""
    import subprocess

    code = "import sys, tba.supervised.options; print([m for m in ('torch', 'trl', 'datasets') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
