from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tba.build.learner import build_learner
from tba.build.models import _reference_model, beat_at_every_pass, build_reference, engine_of
from tba.build.searcher import _share_of_versions
from tba.build.tasks import build_scorer, build_task
from tba.build.trainer import build_staleness
from tba.config.settings import Config, load_config
from tba.engines.base import generate
from tba.engines.transformers import TransformersEngine
from tba.policy.batch import pack
from tba.policy.devices import CPU
from tba.policy.policy import Policy, Reference, load_model, load_tokenizer
from tba.runs.activity import Activity
from tba.tasks.encoding import encoder
from tba.testing import make_group, make_response
from tba.types import Prompt, TbaError, Version


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
    shares = [_share_of_versions(config, index, None)(Version(0, 6)) for index in range(num_searchers)]
    assert sum(shares) == config.trainer.num_groups * sync_period
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(("version", "num_steps"), [(0, 4), (1, 1), (7, 0)])
def test_shares_of_exact_ages_are_of_the_steps_that_a_version_is_for(version: int, num_steps: int) -> None:
    config = Config.embedded(searcher={"num_searchers": 3}, trainer={"staleness": 3, "num_steps": 10})
    schedule = build_staleness(config, None, repeatable=True)
    shares = [_share_of_versions(config, index, schedule)(Version(0, version)) for index in range(3)]
    assert sum(shares) == config.trainer.num_groups * num_steps
    assert max(shares) - min(shares) <= 1


def test_a_task_brings_its_own_reward_unless_one_is_named() -> None:
    encode = encoder(load_tokenizer("arithmetic"))
    default = Config.embedded()
    assert build_scorer(default, default.task.load(encode)).functions == ("tba.rewards.answer:final_answer",)
    named = Config.embedded(reward={"functions": ["a:b"]})
    assert build_scorer(named, named.task.load(encode)).functions == ("a:b",)


class CountedBeats(Activity):
    def __init__(self) -> None:
        super().__init__(None, "searcher-0")
        self.num_beats = 0

    def beat(self) -> None:
        self.num_beats += 1


@pytest.mark.parametrize("attention", ["shared", "padded"])
def test_long_generations_and_passes_give_signs_of_life(attention: str) -> None:
    """One for each token that is decoded, and one for each pass: none of them is long."""
    model, tokenizer, activity = (
        load_model("arithmetic", attention=attention),
        load_tokenizer("arithmetic"),
        CountedBeats(),
    )
    beat_at_every_pass(model, activity)
    prompt = Prompt("p", "1+1=\n", tuple(tokenizer.encode("1+1=\n")))
    engine = TransformersEngine(model, tokenizer, temperature=1.0, max_new_tokens=20, seed=0)
    [responses] = generate(engine, [prompt], 2)
    assert activity.num_beats >= max(len(response) for response in responses) > 1
    activity.num_beats = 0
    answered = [(prompt, [make_response([4, 5, 6 + i])]) for i in range(3)]
    Reference(Policy(model, temperature=1.0), max_tokens=1).token_logprobs(answered)
    assert activity.num_beats == 3


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-4), ("bfloat16", 0.0)])
def test_the_reference_is_computed_as_the_policy_is(tmp_path: Path, precision: str, error: float) -> None:
    """While both have the same weights, no rounding may pose as a difference between them. In float32 the reference is
    packed, which orders its sums otherwise."""
    config = Config.embedded(model={"precision": precision}, engine={"precision": "float32"})
    policy = build_learner(config, Activity(tmp_path, "trainer")).policy
    reference = build_reference(config, _reference_model(config, config.model.path, CPU))
    group = make_group([5, 6, 7], [[8, 9, 10], [8, 11], [12, 13, 14, 15]], [0.0, 1.0, 2.0])
    answered = [(group.prompt, [t.response for t in group.trajectories])]
    with torch.no_grad():
        own = policy(pack(answered)).tokens_T.numpy()
    assert np.abs(np.concatenate(reference.token_logprobs(answered)[0]) - own).max() <= error


@pytest.mark.parametrize("model_precision", ["float32", "bfloat16"])
def test_what_searchers_generate_with_does_not_depend_on_the_precision_of_training(model_precision: str) -> None:
    tokenizer = load_tokenizer("arithmetic")
    found = {}
    for engine_precision in ("float32", "bfloat16"):
        config = Config.embedded(model={"precision": model_precision}, engine={"precision": engine_precision})
        model = load_model("arithmetic")
        engine = engine_of(config, model, tokenizer, 0, config.engine.settled_precision)
        prompt = Prompt("p", "12+7=\n", encoder(tokenizer)("12+7=\n")[1])
        responses = generate(engine, [prompt], 4)[0]
        with torch.no_grad():
            exact = Policy(load_model("arithmetic"))(pack([(prompt, responses)])).tokens_T.numpy()
        found[engine_precision] = float(np.abs(np.concatenate([r.token_logprobs for r in responses]) - exact).max())
    assert found["float32"] < 1e-4 < found["bfloat16"]


def test_what_no_launcher_has_settled_is_float32() -> None:
    config = Config.embedded()
    assert (config.engine.precision, config.model.precision) == ("auto", "auto")
    assert config.engine.settled_precision == "float32"
    assert not config.model.in_bfloat16
