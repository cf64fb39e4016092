"""The settings of a run as they are read: whole, of a run that the model belongs to, and without others' code."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tba.cli import main
from tba.config.settings import Config, parse_config, to_toml
from tba.runs.run_config import (
    CONFIG,
    answers_file,
    config_for_model,
    read_run_config,
    replayed_config,
    resumed_config,
    write_run_config,
)
from tba.types import TbaError

UNUSUAL = Config.embedded(
    trainer={"learning_rate": 0.125, "num_steps": 77},
    objective={"beta": 0.5},
    metrics={"tensorboard": False, "wandb": True, "trackio": True},
)
CODE = {"functions": ["evil.py:f"]}


def make_run(folder: Path, config: Config = UNUSUAL) -> str:
    """A run with one checkpoint: the path of its model."""
    model = folder / "checkpoints" / "step-000004" / "model"
    model.mkdir(parents=True)
    write_run_config(folder, config)
    return str(model)


def fault(act: Callable[[], object]) -> str:
    with pytest.raises(TbaError) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Give a file or folder to another user: really where that is allowed, or else by making us another one."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345)
        else:
            us = path.stat().st_uid
            monkeypatch.setattr(os, "geteuid", lambda: us + 1)

    return give


# ---------------------------------------------------------------------------------------------------------------------
# Which run a model belongs to
# ---------------------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_evaluated_with_the_settings_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_run(tmp_path / "run")
    config = config_for_model(model, {"trainer": {"num_steps": 5}})
    assert (config.trainer.learning_rate, config.trainer.num_steps) == (0.125, 5)
    assert config.model.path == model
    assert config.evaluation.reference_model == "arithmetic"
    monkeypatch.chdir(Path(model).parent)
    assert config_for_model("model", {}).trainer.learning_rate == 0.125


@pytest.mark.parametrize(
    "model",
    [
        "model",
        "dl/model",
        "checkpoints/model",
        "step-000004/model",
        "checkpoints/last/model",
        "other/step-000004/model",
        "checkpoints/step-000004/model/model",
        "checkpoints/step-000004/weights",
        "a/checkpoints/step-000004/model",
    ],
)
def test_no_other_place_below_a_config_is_its_run(tmp_path: Path, model: str) -> None:
    write_run_config(tmp_path, UNUSUAL)
    (tmp_path / model).mkdir(parents=True)
    defaults = parse_config({"model": str(tmp_path / model), "task": "addition"}, {})
    assert config_for_model(str(tmp_path / model), {"task": "addition"}) == defaults
    assert answers_file(str(tmp_path / model), "x").parent == Path()


@pytest.mark.parametrize("text", [to_toml(UNUSUAL), 'model = "x"\n', 'reward = "evil.py:f"\n', "[broken"])
@pytest.mark.parametrize("model", ["arithmetic", "some/name", "step-000004/model"])
def test_the_current_folder_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, model: str) -> None:
    here = tmp_path / "checkpoints" / "here"
    here.mkdir(parents=True)
    for folder in (tmp_path, here):
        (folder / CONFIG).write_text(text)
    expected = config_for_model(model, {"task": "addition"})
    monkeypatch.chdir(here)
    assert config_for_model(model, {"task": "addition"}) == expected


def test_code_of_a_config_above_a_model_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole command, up to the model that is not one."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef f(completions, **rest): ...\n")
    settings = {"functions": [f"{tmp_path / 'evil.py'}:f"]}
    write_run_config(tmp_path, Config.embedded(reward=settings))
    model = tmp_path / "dl" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("[]")
    assert main(["eval", str(model), "--output", str(tmp_path / "answers")]) == 2
    assert not (tmp_path / "ran").exists()
    [line] = capsys.readouterr().err.splitlines()
    assert str(model) in line


def test_a_shorthand_in_the_settings_of_a_run_is_understood(tmp_path: Path) -> None:
    model = make_run(tmp_path)
    text = to_toml(UNUSUAL)
    start = text.index("[model]")
    end = text.index("[task]")
    (tmp_path / CONFIG).write_text('model = "arithmetic"\n' + text[:start] + text[end:])
    assert config_for_model(model, {}).evaluation.reference_model == "arithmetic"


# ---------------------------------------------------------------------------------------------------------------------
# Runs of others
# ---------------------------------------------------------------------------------------------------------------------

NAMED: Mapping[str, Mapping[str, Any]] = {
    "reward.functions": {"reward": {"functions": "mine.py:g"}},
    "model.trust_remote_code": {"model": {"trust_remote_code": True}},
}


@pytest.mark.parametrize("whose", ["run", CONFIG])
@pytest.mark.parametrize("setting", NAMED)
@pytest.mark.parametrize("command", [config_for_model, resumed_config])
def test_code_that_another_user_names_is_refused_unless_it_is_named_here(
    tmp_path: Path,
    others: Callable[[Path], None],
    whose: str,
    setting: str,
    command: Callable[[Any, Mapping[str, Any]], Config],
) -> None:
    named = CODE if setting == "reward.functions" else {"trust_remote_code": True}
    config = Config.embedded(**{setting.partition(".")[0]: named})
    model = make_run(tmp_path / "run", config)
    target = tmp_path / "run" if command is resumed_config else model
    assert command(target, {}), "our own run"  # type: ignore[arg-type]
    others(tmp_path / "run" if whose == "run" else tmp_path / "run" / CONFIG)
    line = fault(lambda: command(target, {}))
    assert setting in line
    assert ("--reward" if setting == "reward.functions" else "--model.trust-remote-code") in line
    assert "copy the run" in line
    other_settings = {"trainer": {"num_steps": 9}, "reward": {"weights": [1.0]} if named is CODE else {}}
    assert setting in fault(lambda: command(target, other_settings))
    again = command(target, NAMED[setting])
    assert again.reward.functions in (("mine.py:g",), ())
    if named is CODE:
        assert command(target, {"reward": "mine.py:g"}).reward.functions == ("mine.py:g",)
        assert command(target, {"reward": {"functions": ""}}).reward.functions == ()


@pytest.mark.parametrize("command", [resumed_config, replayed_config])
def test_an_objective_that_another_user_wrote_is_refused_unless_it_is_named_here(
    tmp_path: Path, others: Callable[[Path], None], command: Callable[[Any, Mapping[str, Any]], Config]
) -> None:
    own = {"kind": "their:Objective", "strength": 2}
    model = make_run(tmp_path, Config.embedded(objective=own))
    assert command(tmp_path, {}).objective.kind == "their:Objective", "our own run"
    others(tmp_path)
    line = fault(lambda: command(tmp_path, {}))
    assert "objective.kind" in line
    assert "--objective.kind" in line
    again = command(tmp_path, {"objective": {"kind": "their:Objective"}})
    assert again.objective.model_dump() == own
    assert not config_for_model(model, {}).objective.is_code, "an evaluation has no use for it"


def test_a_run_of_another_user_that_names_no_code_is_evaluated_and_resumed(
    tmp_path: Path, others: Callable[[Path], None]
) -> None:
    model = make_run(tmp_path)
    others(tmp_path)
    assert config_for_model(model, {}).trainer.learning_rate == 0.125
    assert resumed_config(tmp_path, {}).trainer.learning_rate == 0.125


def test_another_task_is_scored_by_its_own_reward_in_place_of_another_users(
    tmp_path: Path, others: Callable[[Path], None]
) -> None:
    model = make_run(tmp_path, Config.embedded(reward={**CODE, "weights": [2.0]}))
    others(tmp_path)
    for task in ("addition", {"kind": "addition"}):
        config = config_for_model(model, {"task": task})
        assert (config.task.kind, config.reward.functions, config.reward.weights) == ("addition", (), ())
    assert "--task" in fault(lambda: config_for_model(model, {"task": {"num_eval": 3}}))


def test_answers_do_not_go_into_the_run_of_another_user(tmp_path: Path, others: Callable[[Path], None]) -> None:
    model = make_run(tmp_path)
    assert answers_file(model, "x").parent == tmp_path.resolve() / "evaluations"
    others(tmp_path)
    assert answers_file(model, "x").parent == Path()


# ---------------------------------------------------------------------------------------------------------------------
# What the file says
# ---------------------------------------------------------------------------------------------------------------------


def test_settings_that_were_cut_short_are_refused_at_every_length(tmp_path: Path) -> None:
    """Or they say the same, if only white space is gone: a section that is missing would fall back to defaults."""
    write_run_config(tmp_path, UNUSUAL)
    content = (tmp_path / CONFIG).read_bytes()
    for length in range(len(content)):
        (tmp_path / CONFIG).write_bytes(content[:length])
        if content[length:].strip():
            assert str(tmp_path / CONFIG) in fault(lambda: read_run_config(tmp_path))
        else:
            assert read_run_config(tmp_path) == UNUSUAL


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a = [" * 5000, b"x = " + b"1" * 5000, b"[run]\n[run]\n"])
def test_what_is_not_toml_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CONFIG).write_bytes(content)
    assert str(tmp_path / CONFIG) in fault(lambda: read_run_config(tmp_path))


def test_retired_settings_are_dropped_and_unknown_ones_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    retired = ("reward.is_retired", "engine.is_retired", "trainer.learning_rate")
    monkeypatch.setattr("tba.runs.run_config._RETIRED", retired)
    text = to_toml(UNUSUAL)
    for section in ("reward", "engine"):
        text = text.replace(f"[{section}]\n", f"[{section}]\nis_retired = 3\n")
    (tmp_path / CONFIG).write_text(text)
    assert read_run_config(tmp_path) == UNUSUAL, "and what is still a setting keeps its value"
    (tmp_path / CONFIG).write_text(text.replace("is_retired", "unheard_of", 1))
    assert "unheard_of" in fault(lambda: read_run_config(tmp_path))


def test_sections_that_came_later_may_be_missing(tmp_path: Path) -> None:
    def without(section: str) -> str:
        head, _, tail = to_toml(UNUSUAL).partition(f"[{section}]\n")
        return head + tail[tail.index("\n[") :]

    (tmp_path / CONFIG).write_text(without("reference"), "utf-8")
    assert read_run_config(tmp_path) == UNUSUAL
    (tmp_path / CONFIG).write_text(without("searcher"), "utf-8")
    assert "searcher is missing" in fault(lambda: read_run_config(tmp_path)), "it was always there"


def test_a_run_goes_on_on_other_devices_and_with_no_other_task(tmp_path: Path) -> None:
    task = {"kind": "redteam", "victim": "v", "classifier": "c"}
    make_run(tmp_path, parse_config({}, {"model": "arithmetic", "task": task}))
    moved = {"model": {"device": "cuda"}, "engine": {"device": "cuda:1"}, "task": {"victim_device": "cuda:2"}}
    config = resumed_config(tmp_path, moved)
    assert (config.model.device, config.engine.device) == ("cuda", ("cuda:1",))
    assert config.task.model_dump()["victim_device"] == "cuda:2"
    other = {"task": {"victim": "w"}}
    assert "task cannot change" in fault(lambda: resumed_config(tmp_path, other))


def test_folders_of_earlier_versions_stay_readable(tmp_path: Path) -> None:
    text = to_toml(UNUSUAL)
    for section, line in (("reward", "max_processes = 32"), ("engine", 'kind = "transformers"')):
        text = text.replace(f"{line}\n", "").replace(f"[{section}]\n", f"[{section}]\n{line}\n")
    (tmp_path / CONFIG).write_text(text)
    assert read_run_config(tmp_path) == UNUSUAL


@pytest.mark.parametrize("step", ["open", "fsync", "replace"])
def test_settings_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    write_run_config(tmp_path, UNUSUAL)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, full)
        line = fault(lambda: write_run_config(tmp_path, Config.embedded()))
    assert "No space left" in line
    assert read_run_config(tmp_path) == UNUSUAL
    write_run_config(tmp_path, Config.embedded())
    assert read_run_config(tmp_path) == Config.embedded()
    assert os.listdir(tmp_path) == [CONFIG]
