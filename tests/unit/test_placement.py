"""Where models go: `auto` by the number of GPUs, names that are not there, and what is asked of the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tba.build import searcher
from tba.build.learner import build_learner
from tba.build.tasks import build_scorer
from tba.config.settings import Config, parse_config
from tba.launch import preflight
from tba.launch.gpus import count_gpus
from tba.launch.preflight import check
from tba.policy import devices
from tba.policy.placement import beside, check_device, definite, named_devices, searcher_device
from tba.rewards.functions import RewardFactory
from tba.rewards.reward_model import RewardModel
from tba.runs.activity import Activity
from tba.tasks.base import not_encoded
from tba.tasks.redteam import Settings as RedteamSettings
from tba.testing import save_tiny_classifier
from tba.types import TbaError


@pytest.mark.parametrize(("num_gpus", "expected"), [(0, "cpu"), (1, "cuda:0"), (4, "cuda:0")])
def test_auto_is_the_first_gpu_or_the_cpu(num_gpus: int, expected: str) -> None:
    assert definite("auto", num_gpus) == expected
    assert definite("cuda:2", num_gpus) == "cuda:2"
    assert definite("cpu", num_gpus) == "cpu"


@pytest.mark.parametrize(
    ("devices", "learner", "num_gpus", "expected"),
    [
        (("auto",), "cpu", 0, ["cpu", "cpu", "cpu"]),
        (("auto",), "cuda:0", 1, ["cuda:0", "cuda:0", "cuda:0"]),
        (("auto",), "cuda:0", 2, ["cuda:1", "cuda:1", "cuda:1"]),
        (("auto",), "cuda:0", 4, ["cuda:1", "cuda:2", "cuda:3", "cuda:1"]),
        (("auto",), "cuda:2", 4, ["cuda:0", "cuda:1", "cuda:3", "cuda:0"]),
        (("auto",), "cuda", 2, ["cuda:1", "cuda:1"]),
        (("auto",), "cpu", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        (("cuda:3",), "cuda:0", 4, ["cuda:3", "cuda:3"]),
        (("cuda:1", "cpu", "cuda:0"), "cuda:0", 2, ["cuda:1", "cpu", "cuda:0"]),
    ],
)
def test_searchers_are_dealt_out(devices: tuple[str, ...], learner: str, num_gpus: int, expected: list[str]) -> None:
    found = [searcher_device(devices, index, learner, num_gpus) for index in range(len(expected))]
    assert found == expected


@pytest.mark.parametrize(("device", "num_gpus"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1), ("cuda:12", 8)])
def test_a_device_that_is_not_there_is_told_with_its_setting(device: str, num_gpus: int) -> None:
    with pytest.raises(TbaError, match=r"reference\.device = 'cuda") as caught:
        check_device(device, "reference.device", num_gpus)
    assert "\n" not in str(caught.value)
    assert "auto" in str(caught.value)


@pytest.mark.parametrize(("device", "num_gpus"), [("auto", 0), ("cpu", 0), ("cuda", 1), ("cuda:7", 8)])
def test_a_device_that_is_there_is_no_fault(device: str, num_gpus: int) -> None:
    check_device(device, "model.device", num_gpus)


# ---------------------------------------------------------------------------------------------------------------------
# Settings
# ---------------------------------------------------------------------------------------------------------------------


def redteam(**settings: Any) -> Config:
    task = {"kind": "redteam", "victim": "v", "classifier": "c", **settings.pop("task", {})}
    return parse_config({}, {"model": {"path": "arithmetic", **settings.pop("model", {})}, "task": task, **settings})


def test_every_model_has_a_device() -> None:
    config = redteam(searcher={"num_searchers": 2}, engine={"device": "cuda:1,cuda:2"})
    assert list(named_devices(config)) == [
        ("model.device", "auto"),
        ("task.victim_device", "auto"),
        ("task.classifier_device", "auto"),
        ("reward.model_device", "auto"),
        ("engine.device", "cuda:1"),
        ("engine.device", "cuda:2"),
        ("reference.device", "auto"),
        ("evaluation.gold_device", "auto"),
        ("evaluation.embedding_device", "auto"),
    ]


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1 ", "meta", "mps", ""])
def test_what_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(TbaError, match=rf"^model\.device = {name!r}: is no device"):
        Config.embedded(model={"device": name})


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"engine": {"device": "cpu,cpu,cpu"}, "searcher": {"num_searchers": 2}}, "one for all, or one for each"),
        ({"engine": {"device": "cuda", "precision": "int8"}}, r"engine\.precision = 'int8' is for CPUs"),
        ({"engine": {"dtype": "bfloat16", "precision": "int8"}}, r"int8' needs engine\.dtype = 'float32'"),
        ({"model": {"lora_rank": 2}, "reference": {"device": "cuda:1"}}, r"reference\.device cannot be chosen"),
        ({"model": {"lora_rank": 2}, "reference": {"dtype": "bfloat16"}}, "set both alike"),
        ({"model": {"lora_rank": 2}, "engine": {"dtype": "bfloat16"}}, "set both alike"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(TbaError, match=message) as caught:
        Config.embedded(**sections)
    assert "\n" not in str(caught.value)


def test_with_adapters_both_may_be_bfloat16() -> None:
    both = {"dtype": "bfloat16"}
    config = Config.embedded(model={"lora_rank": 2}, engine=both, reference=both)
    assert (config.engine.dtype, config.reference.dtype) == ("bfloat16", "bfloat16")


# ---------------------------------------------------------------------------------------------------------------------
# What is asked of the machine, and when
# ---------------------------------------------------------------------------------------------------------------------


def test_no_machine_is_looked_at_unless_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> int:
        raise AssertionError("asked")

    monkeypatch.setattr(preflight, "count_gpus", never)
    check(Config.embedded(engine={"device": "cpu"}))


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("model", {"device": "cuda:1"}),
        ("engine", {"device": "cuda:1"}),
        ("engine", {"device": "cuda:0,cuda:1"}),
        ("reference", {"device": "cuda:1"}),
        ("reward", {"model_device": "cuda:1"}),
        ("evaluation", {"gold_device": "cuda:1"}),
        ("evaluation", {"embedding_device": "cuda:1"}),
    ],
)
def test_a_gpu_that_is_not_there_is_told_before_anything_starts(
    section: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "count_gpus", lambda: 1)
    config = Config.embedded(**{"searcher": {"num_searchers": 2}, section: settings})
    with pytest.raises(TbaError, match=rf"{section}\.{next(iter(settings))} = 'cuda:1': torch finds cuda:0 to cuda:0"):
        check(config)


def test_what_nothing_is_trained_on_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint of a run on another machine is evaluated here."""
    monkeypatch.setattr(preflight, "count_gpus", lambda: 0)
    check(Config.embedded(model={"device": "cuda:5"}), to_train=False)


def test_a_process_of_its_own_counts_what_torch_finds() -> None:
    assert count_gpus() == devices.num_gpus()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_process_that_cannot_have_its_device_says_so(tmp_path: Path) -> None:
    with pytest.raises(TbaError, match=r"^model\.device = 'cuda': torch finds no GPU"):
        build_learner(Config.embedded(model={"device": "cuda"}), Activity(tmp_path, "trainer"))
    path = str(save_tiny_classifier(tmp_path / "model"))
    with pytest.raises(TbaError, match=r"^evaluation\.gold_device = 'cuda': torch finds no GPU"):
        RewardModel(path, device="cuda", device_setting="evaluation.gold_device")


# ---------------------------------------------------------------------------------------------------------------------
# Models beside an engine
# ---------------------------------------------------------------------------------------------------------------------


def test_models_go_where_the_engine_is_unless_they_are_told() -> None:
    given = {"victim_device": "auto", "classifier_device": "cpu", "device": "auto", "victim": "auto"}
    assert beside(given, "cuda:1") == {**given, "victim_device": "cuda:1", "device": "cuda:1"}


def settings_of(reward: object) -> Any:
    assert isinstance(reward, RewardFactory)
    return reward.settings


def test_a_reward_is_told_the_device_of_its_searcher() -> None:
    config = redteam(task={"classifier_device": "cpu"})
    assert isinstance(config.task, RedteamSettings)
    task = config.task.load(not_encoded)
    [reward] = build_scorer(config, task, "cuda:3").functions
    assert (settings_of(reward)["victim_device"], settings_of(reward)["classifier_device"]) == ("cuda:3", "cpu")
    named = redteam(reward={"model": "a/b"})
    [reward] = build_scorer(named, task, "cuda:3").functions
    assert settings_of(reward)["device"] == "cuda:3"


def test_each_searcher_gets_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (searcher, devices):
        monkeypatch.setattr(module, "num_gpus", lambda: 3)
    config = Config.embedded(searcher={"num_searchers": 3})
    found = [searcher._device_of_searcher(config, index) for index in range(3)]
    assert found == [torch.device("cuda:1"), torch.device("cuda:2"), torch.device("cuda:1")]
