"""A run stands for its newest checkpoint, wherever a model is expected, and the user is told which was taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_folders import make_checkpoint, make_run

from tba import api
from tba.cli import main
from tba.config.settings import Config
from tba.runs.model_of import model_of, with_models_of_runs
from tba.runs.run_config import config_for_model
from tba.types import TbaError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = make_run(tmp_path / "runs" / "mine", objective={"beta": 0.25})
    make_checkpoint(run, 2)
    make_checkpoint(run, 4)
    return run


def newest(run: Path) -> str:
    return str(run / "checkpoints/step-000004/model")


def test_a_run_is_its_newest_checkpoint_and_a_checkpoint_its_model(run: Path) -> None:
    assert model_of(str(run)).path == newest(run)
    older = run / "checkpoints/step-000002"
    assert model_of(str(older)).path == str(older / "model")
    for source in (str(run), str(older)):
        assert model_of(source).path in model_of(source).note


@pytest.mark.parametrize("source", ["arithmetic", "org/model", "models/mine"])
def test_any_other_model_stands_for_itself(source: str) -> None:
    found = model_of(source)
    assert (found.path, found.note) == (source, "")


def test_a_model_folder_stands_for_itself(run: Path) -> None:
    assert model_of(newest(run)).path == newest(run)


def test_a_run_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "young")
    with pytest.raises(TbaError, match="has no checkpoint yet"):
        model_of(str(run))


def test_every_setting_that_names_a_model_may_name_a_run(run: Path) -> None:
    victim = {"kind": "redteam", "victim": str(run), "classifier": "c", "classifier_label": "bad"}
    config = Config.embedded(model={"path": str(run)}, task=victim, evaluation={"reference_model": str(run)})
    found, notes = with_models_of_runs(config)
    models: list[Any] = [found.model.path, found.evaluation.reference_model, found.task.model_dump()["victim"]]
    assert models == [newest(run)] * 3
    assert [note.partition(":")[0] for note in notes] == ["model.path", "evaluation.reference_model", "task.victim"]
    assert all(newest(run) in note for note in notes)


def test_settings_without_a_run_stay_as_they_are() -> None:
    config = Config.embedded()
    assert with_models_of_runs(config) == (config, [])


def test_training_starts_from_the_checkpoint_and_writes_it_down(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that goes on has a newer checkpoint later: what was started from must stay known."""
    started: list[tuple[Config, list[str]]] = []
    monkeypatch.setattr(api, "check", lambda config: ["another note"])
    monkeypatch.setattr(
        api, "_launch", lambda config, new, checkpoint, notes, callbacks, display: started.append((config, notes))
    )
    api.train(model=str(run), task="arithmetic", run={"name": "next", "root": str(run.parent)})  # type: ignore[arg-type]
    [(config, notes)] = started
    assert config.model.path == newest(run)
    assert newest(run) in (run.parent / "next" / "config.toml").read_text()
    assert notes == [f"model.path: {model_of(str(run)).note}", "another note"]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("sft", ["--data", "d.jsonl"]),
        ("reward-model", ["--data", "d.jsonl"]),
        ("classifier", ["--data", "d.jsonl"]),
    ],
)
def test_supervised_commands_take_a_run(
    run: Path, command: str, options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(f"tba.supervised.{command.replace('-', '_')}.run", given.append)
    assert main([command, str(run), *options, "--output", str(run.parent / "out")]) == 0
    assert [options.model for options in given] == [newest(run)]
    assert capsys.readouterr().out == f"{model_of(str(run)).note}\n"


def test_an_evaluation_takes_a_run_with_its_settings_and_without_one_the_newest(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Config] = []
    monkeypatch.setattr("tba.launch.evaluation.evaluate_model", lambda config, output: given.append(config))
    assert main(["eval", str(run)]) == 0
    monkeypatch.chdir(run.parent.parent)
    assert main(["eval", "--evaluation.num-prompts", "8"]) == 0
    assert [Path(config.model.path).resolve() for config in given] == [Path(newest(run))] * 2
    assert [config.evaluation.num_prompts for config in given] == [256, 8]
    told = capsys.readouterr()
    assert told.out.splitlines()[0] == model_of(str(run)).note
    assert told.err == "the newest run is taken: runs/mine\n"


def test_a_sweep_may_start_from_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = run.parent / "tune.toml"
    space.write_text(f'[settings]\nmodel = "{run}"\ntask = "arithmetic"\n[space]\nobjective.beta = [0.1, 0.2]\n')
    assert main(["sweep", str(space), "--dry-run"]) == 0
    assert capsys.readouterr().out.count(newest(run)) == 1, "told once, and not for each arm"


@pytest.mark.parametrize("overrides", [{}, {"task": {"num_eval": 4}}, {"engine": {"max_new_tokens": 8}}])
def test_a_model_of_ones_own_is_not_evaluated_on_the_demo(overrides: dict[str, Any]) -> None:
    with pytest.raises(TbaError, match="the task is missing"):
        config_for_model("org/model", overrides)


def test_a_task_that_is_named_is_enough() -> None:
    assert config_for_model("org/model", {"task": "addition"}).task.kind == "addition"
    assert config_for_model("org/model", {"task": {"kind": "addition"}}).task.kind == "addition"
    own = {"task": {"data": "d.jsonl"}, "reward": "m:f"}
    assert config_for_model("org/model", own).task.kind == "custom"
    assert config_for_model("arithmetic", {}).task.kind == "arithmetic"
