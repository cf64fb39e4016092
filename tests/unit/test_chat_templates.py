"""A chat template of one's own, and what it is told: the same in training, evaluation and `tba sft`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tba.build.models import build_engine
from tba.config.settings import Config, parse_config, to_toml
from tba.config.text import parse_overrides
from tba.launch.preflight import check
from tba.policy.policy import load_tokenizer
from tba.runs.run_config import config_for_model, resumed_config, write_run_config
from tba.supervised.options import SftOptions, parse_options
from tba.tasks.encoding import encoder
from tba.testing import character_tokenizer, save_tiny_model
from tba.types import TbaError

THINKING = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}:{% else %}?{% endif %}"
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "mine.jinja"
    path.write_text(THINKING)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_tiny_model(tmp_path / "model")


def test_a_template_is_told_its_keywords() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = THINKING
    assert encoder(tokenizer)(MESSAGES)[0] == "hello?"
    assert encoder(tokenizer, {"enable_thinking": False})(MESSAGES)[0] == "hello:"


@pytest.mark.parametrize("wrong", ["{{ messages[0].content + 1 }}", "{% for m in %}", "{{ raise_exception('no') }}"])
def test_a_template_that_fails_is_told_in_one_line(wrong: str) -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = wrong
    with pytest.raises(TbaError, match=r"chat template cannot write a prompt: .*check model\.chat_template") as told:
        encoder(tokenizer)(MESSAGES)
    assert "\n" not in str(told.value)


def test_a_template_of_ones_own_is_used_and_saved_with_the_model(model: Path, template: Path, tmp_path: Path) -> None:
    config = parse_config({"model": {"path": str(model), "chat_template": str(template)}})
    _, tokenizer, _ = build_engine(config)
    assert encoder(tokenizer)(MESSAGES)[0] == "hello?"
    tokenizer.save_pretrained(tmp_path / "saved")
    assert load_tokenizer(str(tmp_path / "saved")).chat_template == THINKING


def test_a_template_that_is_missing_or_empty_is_told_before_the_start(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jinja").write_text(" \n")
    for name, why in (("gone.jinja", "cannot be read"), ("empty.jinja", "is empty")):
        config = Config.embedded(model={"chat_template": str(tmp_path / name)})
        with pytest.raises(TbaError, match=rf"model\.chat_template .*{why}"):
            check(config)


def test_keywords_come_from_the_command_line_and_go_through_the_file() -> None:
    given = parse_overrides(["--model.chat-template-kwargs.enable-thinking", "false"])
    config = Config.embedded(**given)
    assert config.model.chat_template_kwargs == {"enable_thinking": False}
    as_json = parse_overrides(["--model.chat-template-kwargs", '{"enable_thinking": false, "effort": "low"}'])
    assert Config.embedded(**as_json).model.chat_template_kwargs == {"enable_thinking": False, "effort": "low"}
    import tomllib

    assert parse_config(tomllib.loads(to_toml(config))) == config


def test_a_run_keeps_its_template_and_its_checkpoints_have_it(model: Path, template: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    saved = run / "checkpoints/step-000002/model"
    saved.mkdir(parents=True)
    settings: dict[str, Any] = {"path": str(model), "chat_template": str(template)}
    settings["chat_template_kwargs"] = {"enable_thinking": False}
    write_run_config(run, Config.embedded(model=settings))
    with pytest.raises(TbaError, match=r"model\.chat_template_kwargs cannot change"):
        resumed_config(run, {"model": {"chat_template_kwargs": {"enable_thinking": True}}})
    config = config_for_model(str(saved), {})
    assert config.model.chat_template is None, "it is in the folder of the model"
    assert config.model.chat_template_kwargs == {"enable_thinking": False}


def test_sft_takes_both() -> None:
    arguments = ["--data", "x.jsonl", "--output", "o", "--chat-template", "mine.jinja"]
    options = parse_options(SftOptions, "m", [*arguments, "--chat-template-kwargs.enable-thinking", "false"])
    assert (options.chat_template, options.chat_template_kwargs) == ("mine.jinja", {"enable_thinking": False})
