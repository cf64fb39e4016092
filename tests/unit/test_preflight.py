"""What can be known of a run's input is found before any process of it starts, and told in one line."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from rewards_for_tests import spec

from tba.config.paths import missing_path, nearest
from tba.config.settings import Config, parse_config
from tba.launch import local, preflight
from tba.launch.preflight import check
from tba.launch.prompt_checks import check_chat_template, check_room, context_of
from tba.policy.names import MINILM, model_directory, read_model_config
from tba.rewards.dry_call import check_by_calling
from tba.tasks.base import Problem
from tba.tasks.read_data import read_rows
from tba.testing import character_tokenizer
from tba.types import Prompt, TbaError

CHAT = [{"role": "user", "content": "1+1="}]


def config_of(tmp_path: Path, rows: list[dict[str, Any]], **sections: Any) -> Config:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    base = {"model": "arithmetic", "task": {"data": str(path), "num_eval": 0}, "engine": {"max_new_tokens": 16}}
    return parse_config(base, {"reward": {"functions": spec("ones"), "dry_call": False}}, sections)


def fault(config: Config) -> str:
    with pytest.raises(TbaError) as caught:
        check(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Rewards
# ---------------------------------------------------------------------------------------------------------------------


def call(name: str, seconds: float = 60.0, **columns: Any) -> None:
    check_by_calling([spec(name)], "1+1=", columns, timeout_seconds=seconds, start_seconds=120.0, num_steps=10)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("raise", "ValueError: no reward (rewards_for_tests.py, line"),
        ("number", "returned float, not a list of 2 numbers"),
        ("nan", "gave nan for completion 0: not a finite number"),
        ("exit", "ended with exit code 3"),
    ],
)
def test_a_reward_that_cannot_score_is_refused_by_a_dry_call(act: str, message: str) -> None:
    with pytest.raises(TbaError) as caught:
        call("act", act=act)
    assert message in str(caught.value)
    assert "reward function act fails on made-up responses to the first prompt" in str(caught.value)
    assert "reward.dry_call" in str(caught.value)


def test_a_reward_that_hangs_is_ended_by_the_time_limit_of_a_run() -> None:
    with pytest.raises(TbaError, match=r"took more than 0\.2 s"):
        call("act", 0.2, act="hang")


@pytest.mark.parametrize("name", ["asynchronous", "tripled"])
def test_rewards_that_score_pass(name: str) -> None:
    call(name)


def test_the_dry_call_has_the_first_row_and_can_be_switched_off(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "act": "raise"}, {"prompt": "1+2=", "act": "return"}]
    reward = {"functions": spec("act"), "dry_call": True}
    assert "ValueError: no reward" in fault(config_of(tmp_path, rows, reward=reward))
    assert check(config_of(tmp_path, rows[::-1], reward=reward)) == []
    assert check(config_of(tmp_path, rows, reward={**reward, "dry_call": False})) == []


def test_no_process_is_started_for_a_task_with_its_own_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_by_calling", lambda *_, **__: pytest.fail("no function was named"))
    assert check(Config.embedded(task={"num_train": 4, "num_eval": 2})) == []


def test_a_parameter_that_is_nearly_right_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "asking.py").write_text("def f(completoin_ids, **k): ...\ndef g(texts, anwser): ...\n")
    for name, meant in (("f", "completion_ids"), ("g", "answer")):
        reward = {"functions": f"{tmp_path / 'asking.py'}:{name}", "dry_call": False}
        line = fault(config_of(tmp_path, [{"prompt": "a", "answer": "b"}], reward=reward))
        assert f"did you mean '{meant}'?" in line
        assert "(columns: answer)" in line


# ---------------------------------------------------------------------------------------------------------------------
# Prompts
# ---------------------------------------------------------------------------------------------------------------------


def model_without_weights(folder: Path, chat_template: str | None = None, **config: Any) -> str:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return str(folder)


def problem(content: Any) -> Problem:
    return Problem(Prompt("p", "", (0,)), content, {})


@pytest.mark.parametrize("template", [None, "{{ messages }}"])
def test_chat_prompts_need_a_chat_template(tmp_path: Path, template: str | None) -> None:
    model = model_without_weights(tmp_path / "model", template)
    check_chat_template(model, [problem("1+1=")])
    if template:
        check_chat_template(model, [problem(CHAT)])
    else:
        with pytest.raises(TbaError, match="the model has no chat template"):
            check_chat_template(model, [problem("1+1="), problem(CHAT)])


def test_a_template_among_the_settings_of_the_tokenizer_counts(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model_without_weights(folder)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    check_chat_template(str(folder), [problem(CHAT)])


def test_a_run_of_chats_without_a_template_is_refused_before_it_starts(tmp_path: Path) -> None:
    assert "the model has no chat template" in fault(config_of(tmp_path, [{"prompt": CHAT}]))


@pytest.mark.parametrize("content", ["1" * 50, [{"role": "user", "content": "1" * 50}]], ids=["text", "chat"])
def test_prompts_are_measured_against_the_context(tmp_path: Path, content: Any) -> None:
    model = model_without_weights(tmp_path / "model")
    for context, fits in ((60, True), (59, False)):
        asked = (model, {"max_position_embeddings": context}, 10, [problem(content), problem("1" * 80)])
        if fits:
            check_room(*asked)
        else:
            with pytest.raises(
                TbaError, match=r"no prompt fits.*context is 59.*lower engine\.max_new_tokens, or shorten"
            ):
                check_room(*asked)


def test_short_prompts_are_not_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tba.launch.prompt_checks._fewest_tokens", lambda *_: pytest.fail("no need to"))
    model = model_without_weights(tmp_path / "model")
    check_room(model, {"max_position_embeddings": 60}, 10, [problem("1" * 40), problem("1" * 80)])
    check_room(model, {}, 10, [problem("1" * 80)])


def test_a_response_must_leave_room_for_a_prompt(tmp_path: Path) -> None:
    line = fault(config_of(tmp_path, [{"prompt": "1+1="}], engine={"max_new_tokens": 4096}))
    assert "engine.max_new_tokens = 4096 leaves no room for a prompt" in line
    assert "lower engine.max_new_tokens" in line


def test_the_context_is_found_under_all_its_names() -> None:
    assert context_of({"n_positions": 7}) == 7
    assert context_of({"text_config": {"max_position_embeddings": 9}}) == 9
    assert context_of({}) is None
    assert context_of(read_model_config(model_directory("arithmetic"), "model")) == 256


# ---------------------------------------------------------------------------------------------------------------------
# Paths, packages, processes
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two models in it, and no hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "smollm2").mkdir(parents=True)
    (tmp_path / "models" / "other").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("models/smolm2", "did you mean 'models/smollm2'?"),
        ("model/smollm2/", "did you mean 'models'?"),
        ("./models/smolm2", "did you mean 'models/smollm2'?"),
        ("models/xyz", "check the path; models has other, smollm2"),
        ("a/b/c", "check the path"),
        ("~/no-such-folder-of-mine/x", "check the path"),
    ],
)
def test_what_can_only_be_a_path_never_goes_to_the_hub(folder: Path, name: str, said: str) -> None:
    with pytest.raises(TbaError) as caught:
        read_model_config(name, "model")
    assert str(caught.value).startswith(f"model {name!r} is not there: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen3-0.6B"])
def test_what_may_be_an_id_may_be_looked_for(folder: Path, name: str) -> None:
    assert missing_path(name) is None


def no_address(*_: Any) -> Any:
    raise socket.gaierror(-2, "Name or service not known")


def test_a_hub_without_an_address_is_not_asked_again_and_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    for name, said in (("model/smollm2", "did you mean 'models'?"), (f"sentence-transformers/{MINILM}", "a package")):
        with pytest.raises(TbaError) as caught:
            read_model_config(name, "model")
        assert "the hub cannot be reached (Name or service not known)" in str(caught.value)
        assert said in str(caught.value)
    with pytest.raises(TbaError, match=r"dataset 'org/data' is not here, and the hub cannot be reached"):
        read_rows("org/data", "train")
    assert "Retrying" not in capfd.readouterr().err


def test_what_was_downloaded_before_needs_no_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    kept = {"config.json": str(folder / "config.json")}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda id, name: kept.get(name))
    monkeypatch.setattr(socket, "getaddrinfo", no_address)
    assert read_model_config("org/model", "model") == {"model_type": "llama"}
    check_chat_template("org/model", [problem(CHAT)])


def test_data_in_a_folder_that_is_here_is_not_looked_for_on_the_hub(folder: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").touch()
    (folder / "data" / "rows").mkdir()
    for data, said in (("data/row", "'data/rows'"), ("data/trian.jsonl", "'data/train.jsonl'")):
        config = parse_config({"model": "arithmetic", "task": {"data": data}, "reward": spec("ones")})
        assert f"did you mean {said}?" in fault(config)


def test_the_nearest_path_of_nothing_is_no_error() -> None:
    assert nearest("/") == "check the path"
    assert nearest("") == "check the path"


@pytest.mark.parametrize(
    ("sections", "package", "extra"),
    [
        ({"model": {"path": "arithmetic", "lora_rank": 4}}, "peft", "lora"),
        ({"metrics": {"wandb": True}}, "wandb", "wandb"),
        ({"metrics": {"trackio": True}}, "trackio", "trackio"),
    ],
)
def test_packages_that_settings_need_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], package: str, extra: str
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == package else found(name))
    assert f"[{extra}]" in fault(config_of(tmp_path, [{"prompt": "1+1="}], **sections))


@pytest.mark.parametrize(
    ("num_searchers", "trainer", "cores", "said"),
    [
        (64, {}, 2, "65 processes share 2 cores (searcher.num_searchers = 64)"),
        (1, {}, 1, "2 processes share 1 core (searcher"),
        (1, {}, 2, None),
        (2, {"synchronous": True, "sync_period": 1}, 2, None),
    ],
)
def test_more_processes_than_cores_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, num_searchers: int, trainer: dict[str, Any], cores: int, said: str | None
) -> None:
    monkeypatch.setattr(local, "num_cores", lambda: cores)
    warning = local.crowding(Config.embedded(searcher={"num_searchers": num_searchers}, trainer=trainer))
    assert (warning is None) if said is None else (warning is not None and said in warning)
