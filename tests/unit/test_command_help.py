"""`tba COMMAND --help`: the command alone; of the settings an overview, a section, a setting, or all."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tba.cli import COMMANDS, main
from tba.config.command_help import command_text
from tba.config.commands import COMMANDS as HELPED
from tba.config.commands import usage
from tba.config.help import sections, setting_names
from tba.config.settings import Config, load_config, parse_config
from tba.config.template import template

OWN = {"model": "m", "task": {"data": "rows.jsonl"}, "reward": "rewards:length", "trainer": {"max_staleness": 4}}


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


def flags(text: str) -> set[str]:
    return set(re.findall(r"^ +(--[\w.-]+)", text, re.MULTILINE))


def test_every_command_has_help() -> None:
    assert list(HELPED) == list(COMMANDS)
    assert all(f"tba {words}" in usage() for command in HELPED.values() for words, _ in command.uses)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_about_the_command_alone(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, name, "--help")
    assert text.startswith(f"tba {HELPED[name].uses[0][0]}\n")
    assert usage().splitlines()[0] not in text
    uses = [line for line in text.splitlines() if line.startswith("tba ") and " --help" not in line]
    assert all(line.split()[1] == name for line in uses)
    assert len(text.splitlines()) <= 48, "a screen"
    assert shown(capsys, "help", name) == text


def test_a_section_is_shown_alone(capsys: pytest.CaptureFixture[str]) -> None:
    found = flags(shown(capsys, "train", "--help", "trainer"))
    assert {flag.split(".")[0] for flag in found} == {"--trainer"}
    assert len(found) == len([name for name in setting_names() if name.startswith("trainer.")])


@pytest.mark.parametrize("word", ["trainer.learning_rate", "trainer.learning-rate", "--trainer.learning-rate"])
def test_a_setting_is_shown_alone(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", word)
    assert flags(text) == {"--trainer.learning-rate"}
    assert "Peak learning rate" in text


@pytest.mark.parametrize("word", ["gsm8k", "task.gsm8k"])
def test_a_kind_is_shown_alone(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", word)
    assert "--task.max-solution-lines" in flags(text)
    assert "reasoning-gym" not in text


def test_kinds_that_share_their_settings_have_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "train", "--help", "all")
    assert text.count("--task.max-solution-lines") == 1
    assert "It has the settings of gsm8k." in " ".join(text.split())


def test_all_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {setting.flag for _, _, settings in sections() for setting in settings}
    assert flags(shown(capsys, "train", "--help", "all")) == listed


@pytest.mark.parametrize(("word", "meant"), [("lr", "trainer.learning_rate"), ("traner", "trainer"), ("x", "")])
def test_what_there_is_not_is_answered_with_what_was_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--help", word]) == 2
    error = capsys.readouterr().err
    assert f"no section or setting {word!r}" in error
    assert (f"did you mean {meant}?" in error) == bool(meant)


def test_a_mistyped_command_is_answered_with_the_closest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_narrow_terminals_get_narrow_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert max(map(len, command_text("status").splitlines())) <= 80


# ---------------------------------------------------------------------------------------------------------------------
# `tba config`
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [Config.embedded(), parse_config(OWN)], ids=["demo", "own"])
def test_what_config_prints_gives_the_same_settings(config: Config, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(template(config), "utf-8")
    assert load_config(tmp_path / "my.toml", {}) == config


def test_what_is_not_set_is_a_comment_with_its_meaning(tmp_path: Path) -> None:
    config = parse_config(OWN)
    text = template(config)
    commented = set(re.findall(r"^# (\w+) = \(", text, re.MULTILINE))
    assert {"gold_model", "beta_final", "eval_data", "chat_template"} <= commented
    assert "max_staleness" not in commented
    for name, values in config.model_dump(mode="json").items():
        section = text.partition(f"[{name}]\n")[2].partition("\n[")[0]
        known = set(tomllib.loads(section)) | set(re.findall(r"^# (\w+) = \(", section, re.MULTILINE))
        assert known == set(values), name
    uncommented = text.replace("# staleness = (integer)", "staleness = 3").replace("max_staleness = 4\n", "")
    assert parse_config(tomllib.loads(uncommented)).trainer.staleness == 3


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "config") == template(Config.embedded())


def test_an_encoding_without_our_characters_is_no_error() -> None:
    """As where a run is started with next to no environment."""
    command = [sys.executable, "-m", "tba", "--help"]
    environment = {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "tba train [CONFIG] [--section.key value ?]" in done.stdout
