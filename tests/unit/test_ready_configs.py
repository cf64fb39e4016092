"""Each ready configuration loads by its name from any folder, and what it needs first is told with its command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documented_commands import Command, fault, split

from tba.cli import main
from tba.config.ready import FOLDER, MADE_BY, YOUR_DATA, check_earlier_steps, ready_names
from tba.config.settings import Config, load_config, to_toml
from tba.types import TbaError

NAMES = ready_names()
PAPER = [name for name in NAMES if name.startswith("paper/")]


def test_there_are_configurations_and_those_for_small_machines_come_first() -> None:
    assert NAMES[:4] == ["smollm2-addition", "smollm2-gsm8k", "smollm2-redteam", "smollm2-tldr"]
    assert NAMES[4:] == PAPER
    assert {"paper/gsm8k-rho1b", "paper/math-qwen2.5-7b"} <= set(PAPER)


@pytest.mark.parametrize("name", NAMES)
def test_every_configuration_loads_and_its_resolved_form_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(name, {})
    Path("config.toml").write_text(to_toml(config), "utf-8")
    assert load_config("config.toml", {}) == config
    assert load_config(name, {"run": {"seed": 1}}).run.seed == 1


@pytest.mark.parametrize("name", PAPER)
def test_those_of_the_paper_say_that_their_hardware_is_not_used(name: str) -> None:
    opening = " ".join((FOLDER / f"{name}.toml").read_text("utf-8").partition("\n[")[0].replace("#", " ").split())
    assert "GPUs, on which nothing here has run yet" in opening


def test_a_file_comes_before_a_ready_configuration_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2-addition").write_text('model = "mine"', "utf-8")
    assert load_config("smollm2-addition", {}).model.path == "mine"


def test_a_wrong_name_is_answered_with_the_nearest_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ("smollm2-adition", "configs/smollm2-addition.toml"):
        with pytest.raises(TbaError, match=r"did you mean the ready configuration smollm2-addition\?"):
            load_config(wrong, {})
    with pytest.raises(TbaError, match="no configuration file at zzz: check the path, or `tba configs` lists"):
        load_config("zzz", {})


def test_the_command_lists_each_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == NAMES
    assert all(re.fullmatch(r"\S+ +[A-Z].{20,100}\.", line) for line in lines)
    assert main(["configs", "smollm2-tldr"]) == 2
    assert "tba config smollm2-tldr prints one" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------------
# Earlier steps
# ---------------------------------------------------------------------------------------------------------------------


def paths_of(config: Config) -> set[str]:
    named = [config.model.path, config.reward.model, config.evaluation.gold_model]
    named += [getattr(config.task, name, None) for name in ("data", "eval_data", "victim", "classifier")]
    return {path for path in named if path}


def test_every_path_of_those_for_small_machines_is_made_by_a_command_or_told_as_data() -> None:
    needed = set().union(*(paths_of(load_config(name, {})) for name in NAMES if name not in PAPER))
    assert needed == {*MADE_BY, *YOUR_DATA}


@pytest.mark.parametrize("path", MADE_BY)
def test_the_commands_exist_and_make_what_they_should(path: str) -> None:
    [words] = split(MADE_BY[path])
    assert fault(Command("here", words)) is None
    assert path in words or words == ("tba", "fetch", "smollm2")


def test_what_is_missing_is_told_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "smollm2-addition"]) == 2
    gsm8k = load_config("smollm2-gsm8k", {}).model_dump(mode="json")
    with pytest.raises(TbaError) as told:
        check_earlier_steps(gsm8k)
    assert str(told.value) == (
        f"model.path = 'models/gsm8k-sft' is not here yet: make it first with: {MADE_BY['models/gsm8k-sft']} "
        "(or name another with --model)"
    )
    Path("models/gsm8k-sft").mkdir(parents=True)
    with pytest.raises(TbaError, match=r"task\.data = 'gsm8k/train.jsonl' is not here yet: put rows of GSM8K"):
        check_earlier_steps(gsm8k)
    Path("gsm8k").mkdir()
    Path("gsm8k/train.jsonl").touch()
    check_earlier_steps(gsm8k)
    assert not Path("runs").exists()
