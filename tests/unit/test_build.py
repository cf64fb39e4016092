from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tba.build import _share_of_a_period, build_scorer, build_task
from tba.config import Config, load_config
from tba.encoding import encoder
from tba.policy import load_model, load_tokenizer
from tba.types import TbaError


def custom(tmp_path: Path, rows: list[dict[str, Any]], **sections: Any) -> Config:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = {"data": str(path), "num_eval": 0}
    return load_config(None, {"model": "arithmetic", "reward": "json:dumps", "task": task, **sections})


def test_plain_text_is_read_as_it_is() -> None:
    tokenizer = load_tokenizer("arithmetic")
    text, tokens = encoder(tokenizer)("7+8=\n")
    assert text == "7+8=\n"
    assert tokenizer.decode(list(tokens)) == text


def test_messages_go_through_the_chat_template_once() -> None:
    tokenizer = load_tokenizer("arithmetic")
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}"
    )
    text, tokens = encoder(tokenizer)([{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}])
    assert text == "[system]Add.[user]1+1[me]"
    assert tokenizer.decode(list(tokens)) == text


def test_a_model_without_a_chat_template_refuses_messages() -> None:
    with pytest.raises(TbaError, match="chat template"):
        encoder(load_tokenizer("arithmetic"))([{"role": "user", "content": "1+1"}])


def test_prompts_longer_than_the_context_are_skipped_and_counted(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=\n"}, {"prompt": "1+" * 200 + "1=\n"}, {"prompt": "2+2=\n"}]
    config = custom(tmp_path, rows, engine={"max_new_tokens": 40})
    task = build_task(config, load_tokenizer("arithmetic"), load_model("arithmetic"))
    assert [p.prompt.text for p in task.train] == ["1+1=\n", "2+2=\n"]
    assert task.skipped == {"longer than the model's context": 1}


def test_no_prompt_that_fits_is_an_error(tmp_path: Path) -> None:
    config = custom(tmp_path, [{"prompt": "1+" * 200 + "1=\n"}], engine={"max_new_tokens": 40})
    with pytest.raises(TbaError, match=r"engine\.max_new_tokens"):
        build_task(config, load_tokenizer("arithmetic"), load_model("arithmetic"))


def test_an_answer_longer_than_the_context_is_an_error() -> None:
    config = Config.embedded(engine={"max_new_tokens": 4096})
    with pytest.raises(TbaError, match=r"engine\.max_new_tokens"):
        build_task(config, load_tokenizer("arithmetic"), load_model("arithmetic"))


@pytest.mark.parametrize(("num_searchers", "sync_period"), [(1, 1), (2, 1), (3, 2), (5, 3)])
def test_shares_of_a_period_add_up_to_what_is_drawn(num_searchers: int, sync_period: int) -> None:
    config = Config.embedded(searcher={"num_searchers": num_searchers}, trainer={"sync_period": sync_period})
    shares = [_share_of_a_period(config, index) for index in range(num_searchers)]
    assert sum(shares) == config.trainer.num_groups * sync_period
    assert max(shares) - min(shares) <= 1


def test_a_task_brings_its_own_reward_unless_one_is_named() -> None:
    encode = encoder(load_tokenizer("arithmetic"))
    default = Config.embedded()
    assert build_scorer(default, default.task.load(encode)).functions == ("tba.rewards.answer:final_answer",)
    named = Config.embedded(reward={"functions": ["a:b"]})
    assert build_scorer(named, named.task.load(encode)).functions == ("a:b",)
