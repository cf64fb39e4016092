"""How `auto` becomes a precision: the rule on made-up measurements, what a run keeps of it, and the measurement."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from tba.config.settings import Config, parse_config
from tba.engines.packed_linear import PackedLayers
from tba.launch import precision
from tba.launch.precision import MIN_WEIGHTS, Speeds, choose, settle
from tba.launch.product_speeds import MAX_WEIGHTS, generation_seconds, matrices, training_seconds
from tba.learn.checkpoint import Checkpoint
from tba.policy.policy import load_model
from tba.runs.metrics import read_metrics
from tba.runs.run_config import read_run_config, resumed_config, write_run_config
from tba.testing import save_tiny_model

FAST_BFLOAT16 = Speeds({"float32": 2.0, "bfloat16": 1.0, "int8": 0.8}, {"float32": 3.0, "bfloat16": 2.0})
"""As on a processor with instructions for bfloat16 and int8."""


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"float32": 1.0, "bfloat16": 0.5, "int8": 0.3}, "bfloat16"),
        ({"float32": 1.0, "bfloat16": 0.5, "int8": 0.2}, "int8"),
        ({"float32": 1.0, "bfloat16": 3.0, "int8": 0.5}, "int8"),
        ({"float32": 1.0, "bfloat16": 3.0, "int8": 0.6}, "float32"),
        ({"float32": 1.0, "bfloat16": 0.9, "int8": 0.7}, "float32"),
        ({"float32": 1.0, "bfloat16": 0.9}, "float32"),
        ({"float32": 1.0, "bfloat16": 0.8}, "bfloat16"),
        ({"float32": 1.0}, "float32"),
    ],
)
def test_a_coarser_precision_is_chosen_only_where_it_clearly_pays(seconds: Mapping[str, float], chosen: str) -> None:
    assert choose(seconds).precision == chosen


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3])
def test_the_choice_does_not_depend_on_how_long_all_of_it_takes(factor: float) -> None:
    for seconds in (FAST_BFLOAT16.generation, {"float32": 1.0, "bfloat16": 3.0, "int8": 0.5}):
        assert choose({name: factor * spent for name, spent in seconds.items()}) == choose(seconds)


def test_the_reason_names_the_speed() -> None:
    assert choose(FAST_BFLOAT16.generation).why == "2.0 times float32, int8 2.5"
    assert choose({"float32": 1.0, "bfloat16": 2.0}).why == "bfloat16 is 0.5 times as fast"


# ---------------------------------------------------------------------------------------------------------------------
# In a run
# ---------------------------------------------------------------------------------------------------------------------


def settings(model: str, **sections: Any) -> Config:
    return parse_config({"model": {"path": model}}, sections)


def begun(run: Path, config: Config) -> Config:
    run.mkdir(exist_ok=True)
    write_run_config(run, config)
    return config


def never(config: Config, run: Path) -> Speeds | None:
    raise AssertionError("nothing is to be measured")


def events(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run) if record["kind"] == "event"]


def chosen(config: Config) -> tuple[str, str]:
    return config.engine.precision, config.model.precision


def test_what_was_chosen_stands_in_the_settings_and_is_told(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", settings("org/model"))
    assert chosen(config) == ("auto", "auto")
    lines: list[str] = []
    settled = settle(config, tmp_path / "run", None, tell=lines.append, measure=lambda config, run: FAST_BFLOAT16)
    assert len(lines) == 1, "that it is being measured, because that takes a few seconds"
    assert chosen(settled) == ("bfloat16", "bfloat16")
    assert read_run_config(tmp_path / "run") == settled
    told = [event["message"] for event in events(tmp_path / "run")]
    assert [message.split(" on this processor (")[0] for message in told] == [
        "engine.precision = bfloat16: 2.0 times float32, int8 2.5",
        "model.precision = bfloat16: 1.5 times float32",
    ]
    assert all(precision.processor() in message for message in told)
    record = json.loads((tmp_path / "run" / precision.PRECISION).read_text("utf-8"))
    assert record["processor"] == precision.processor()
    assert record["seconds"]["generation"] == FAST_BFLOAT16.generation


def test_a_precision_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", settings("org/model", engine={"precision": "int8"}))
    settled = settle(config, tmp_path / "run", None, measure=lambda config, run: FAST_BFLOAT16)
    assert chosen(settled) == ("int8", "bfloat16")
    assert [event["setting"] for event in events(tmp_path / "run")] == ["model.precision"]


def test_if_nothing_can_be_measured_it_is_float32(tmp_path: Path) -> None:
    config = begun(tmp_path / "run", settings("org/model"))
    assert chosen(settle(config, tmp_path / "run", None, measure=lambda config, run: None)) == ("float32", "float32")
    assert "could not be measured" in events(tmp_path / "run")[0]["message"]


@pytest.mark.parametrize("why", ["repeatable", "embedded", "small", "gpu"])
def test_repeatable_runs_small_models_and_gpus_are_float32_without_a_measurement(tmp_path: Path, why: str) -> None:
    models = {"embedded": "arithmetic", "small": str(save_tiny_model(tmp_path / "tiny"))}
    own = {"engine": {"device": "cuda:1"}} if why == "gpu" else {}
    config = begun(tmp_path / "run", settings(models.get(why, "org/model"), **own))
    settled = settle(config, tmp_path / "run", None, repeatable=why == "repeatable", measure=never)
    assert chosen(settled) == ("float32", "float32")
    assert chosen(read_run_config(tmp_path / "run")) == ("float32", "float32")
    assert events(tmp_path / "run") == []


FAST_INT8 = Speeds({"float32": 9.0, "bfloat16": 9.0, "int8": 1.0}, {"float32": 9.0, "bfloat16": 1.0})


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({}, ("int8", "bfloat16")),
        ({"engine": {"dtype": "bfloat16"}}, ("bfloat16", "bfloat16")),
        ({"engine": {"device": "cuda:1"}}, ("float32", "float32")),
        ({"model": {"device": "cuda"}}, ("float32", "float32")),
        ({"model": {"device": "cuda"}, "engine": {"device": "cuda", "dtype": "bfloat16"}}, ("bfloat16", "float32")),
    ],
)
def test_what_is_not_computed_by_this_processor_is_not_chosen_by_it(
    tmp_path: Path, sections: dict[str, Any], expected: tuple[str, str]
) -> None:
    config = begun(tmp_path / "run", parse_config({"model": {"path": "org/model"}}, sections))
    settled = settle(config, tmp_path / "run", None, measure=lambda config, run: FAST_INT8)
    assert chosen(settled) == expected
    assert read_run_config(tmp_path / "run") == settled, "and a resume finds no fault with it"


def a_checkpoint(run: Path) -> Checkpoint:
    folder = run / "checkpoints" / "step-000004"
    (folder / "state").mkdir(parents=True)
    (folder / "state" / "state.json").write_text(json.dumps({"step": 4, "elapsed": 60.0}), "utf-8")
    return Checkpoint(folder)


def test_a_resume_keeps_the_precision_and_says_if_the_processor_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    settle(begun(run, settings("org/model")), run, None, measure=lambda config, run: FAST_BFLOAT16)
    resumed = resumed_config(run, {})
    assert chosen(settle(resumed, run, a_checkpoint(run), measure=never)) == ("bfloat16", "bfloat16")
    assert len(events(run)) == 2, "on the same processor there is nothing to say"

    monkeypatch.setattr(precision, "processor", lambda: "Another One avx2")
    assert chosen(settle(resumed, run, Checkpoint(run / "checkpoints" / "step-000004"), measure=never)) == (
        "bfloat16",
        "bfloat16",
    )
    last = events(run)[-1]
    assert (last["event"], last["step"]) == ("processor_changed", 4)
    assert "Another One avx2" in last["message"]
    assert "--engine.precision auto --model.precision auto" in last["message"]


def test_a_resume_can_ask_for_another_measurement(tmp_path: Path) -> None:
    run = tmp_path / "run"
    settle(begun(run, settings("org/model")), run, None, measure=lambda config, run: FAST_BFLOAT16)
    again = resumed_config(run, {"engine": {"precision": "auto"}})
    slow = Speeds({"float32": 1.0, "bfloat16": 2.0}, {"float32": 1.0, "bfloat16": 2.0})
    settled = settle(again, run, a_checkpoint(run), measure=lambda config, run: slow)
    assert chosen(settled) == chosen(read_run_config(run)) == ("float32", "bfloat16")


# ---------------------------------------------------------------------------------------------------------------------
# The measurement
# ---------------------------------------------------------------------------------------------------------------------


def test_products_of_all_linear_layers_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(save_tiny_model(tmp_path))
    layers = [module for module in load_model(folder).modules() if isinstance(module, nn.Linear)]
    num_weights = sum(layer.weight.numel() for layer in layers)
    whole = matrices(folder)
    assert sum(matrix.num_weights for matrix in whole) == num_weights < MIN_WEIGHTS
    assert len(whole) < len(layers), "each shape once"
    monkeypatch.setattr("tba.launch.product_speeds.MAX_WEIGHTS", 500)
    cut = matrices(folder)
    assert max(matrix.num_inputs * matrix.num_outputs for matrix in cut) <= 500 < MAX_WEIGHTS
    assert sum(matrix.num_weights for matrix in cut) == pytest.approx(num_weights)


def test_each_precision_is_timed(tmp_path: Path) -> None:
    found = matrices(str(save_tiny_model(tmp_path)))
    generation = generation_seconds(found, num_rows=4, repeats=1)
    assert generation.keys() >= {"float32", "bfloat16"}
    training = training_seconds(found, num_rows=4, repeats=1)
    assert training.keys() == {"float32", "bfloat16"}
    assert all(0 < seconds < 60 for seconds in (*generation.values(), *training.values()))


def test_a_process_measures_and_hands_its_result_over(tmp_path: Path) -> None:
    """A model this small ends the measurement early; one that is not there ends it with an error."""
    config = settings(str(save_tiny_model(tmp_path / "tiny")))
    found = precision.measured(config, tmp_path)
    assert found == Speeds({"float32": 0.0}, {"float32": 0.0})
    assert choose(found.generation).precision == "float32"
    assert precision.measured(settings(str(tmp_path / "nothing")), tmp_path) is None
    assert "Traceback" in (tmp_path / "logs" / "precision.log").read_text("utf-8")


def test_packed_layers_of_every_choice_can_be_made(tmp_path: Path) -> None:
    folder = str(save_tiny_model(tmp_path))
    for name in generation_seconds(matrices(folder), num_rows=2, repeats=1):
        PackedLayers(load_model(folder), name)  # type: ignore[arg-type]
