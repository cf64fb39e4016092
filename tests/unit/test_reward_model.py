from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import FLOAT32
from transformers import AutoModelForSequenceClassification

from tba.api import _settings
from tba.config.settings import Config, parse_config
from tba.launch.preflight import check
from tba.rewards.reward_model import RewardModel, check_reward_model, encode_scored, reward_model
from tba.rewards.scorer import Scorer, ScoreRequest
from tba.testing import character_tokenizer, save_tiny_classifier, save_tiny_model
from tba.types import TbaError

TEMPLATE = "{% for m in messages %}<{{ m.role }}:{{ m.content }}>{% endfor %}"


def save_reward_model(directory: Path, *, num_labels: int = 1, template: str | None = None) -> Path:
    """A decoder with dropout, which must not be heard of, and a short context."""
    return save_tiny_classifier(
        directory,
        [f"label {i}" for i in range(num_labels)],
        decoder=True,
        chat_template=template,
        num_hidden_layers=2,
        max_position_embeddings=32,
        attention_dropout=0.5,
        eos_token_id=character_tokenizer().eos_token_id,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_reward_model(tmp_path_factory.mktemp("rm")))


def direct_score(path: str, text: str) -> float:
    """What the model gives by itself, one row, nothing padded."""
    tokenizer = character_tokenizer()
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id]])
    with torch.inference_mode():
        return float(model(input_ids=ids).logits[0, 0])


TEXTS = [" a", " long one", " mid", " x", " another"]


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batches_of_any_size_give_each_row_its_own_score(path: str, batch_size: int) -> None:
    scores = RewardModel(path, batch_size=batch_size)(["p:"] * 5, TEXTS, [True] * 5)
    assert scores == pytest.approx([direct_score(path, f"p:{text}") for text in TEXTS], abs=FLOAT32)
    assert len(set(scores)) == 5


def test_scores_are_normalised_and_a_response_without_an_end_gets_its_own(path: str) -> None:
    raw = RewardModel(path)(["p:"] * 5, TEXTS, [True] * 5)
    model = RewardModel(path, normalize_mean=0.5, normalize_std=2.0, no_eos_score=-1.0)
    scores = model(["p:"] * 5, TEXTS, [True, False, True, True, False])
    assert scores[1] == scores[4] == -1.0
    assert [scores[i] for i in (0, 2, 3)] == pytest.approx([(raw[i] - 0.5) / 2 for i in (0, 2, 3)], abs=FLOAT32)


def test_too_long_inputs_lose_their_beginning_and_are_counted(path: str) -> None:
    counted: dict[str, float] = {}
    model = RewardModel(path)  # its context is 32
    long, short = "z" * 40 + "the end", "the end"
    scores = model(["", ""], [long, short], [True, True], log_metric=counted.__setitem__)
    assert counted == {"truncated": 0.5}
    kept = long[-31:]  # and the end token
    assert scores[0] == pytest.approx(direct_score(path, kept), abs=FLOAT32)


def test_a_plain_text_is_closed_by_its_end_only_if_it_was_finished() -> None:
    tokenizer = character_tokenizer()
    plain = tokenizer("ab").input_ids
    assert encode_scored(tokenizer, "a", "b", True, "m") == [*plain, tokenizer.eos_token_id]
    assert encode_scored(tokenizer, "a", "b", False, "m") == plain


def test_a_conversation_goes_through_the_reward_models_own_template() -> None:
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    prompt, completion = [{"role": "user", "content": "q"}], [{"role": "assistant", "content": "a"}]
    tokens = encode_scored(tokenizer, prompt, completion, True, "m")
    assert tokenizer.decode(tokens) == "<user:q><assistant:a>"
    tokenizer.chat_template = None
    with pytest.raises(TbaError, match="m has no chat template"):
        encode_scored(tokenizer, prompt, completion, True, "m")


def test_a_reward_model_runs_in_the_reward_process(path: str) -> None:
    count = len(TEXTS)
    request = ScoreRequest("id", "p:", tuple(TEXTS), ((1,),) * count, (True,) * count, {"summary": "s"}, False)
    with Scorer([reward_model(path)], (), timeout_seconds=240) as scorer:
        assert scorer.names == ("reward_model",)
        [scores] = scorer.score([request])
    assert scores.rewards == pytest.approx(RewardModel(path)(["p:"] * count, TEXTS, [True] * count), abs=FLOAT32)
    assert scores.metrics == {"reward_model/truncated": 0.0}


def test_a_model_with_two_outputs_is_refused_before_anything_starts(tmp_path: Path) -> None:
    two = save_reward_model(tmp_path / "two", num_labels=2)
    with pytest.raises(TbaError, match=r"has 2 outputs: a reward is one number.*tba reward-model"):
        check_reward_model(str(two))
    with pytest.raises(TbaError, match="has 3 outputs"):
        check_reward_model(str(save_reward_model(tmp_path / "three", num_labels=3)))


def test_a_language_model_is_no_reward_model(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "lm")
    with pytest.raises(TbaError, match="is a LlamaForCausalLM, not a sequence classifier"):
        check_reward_model(str(tmp_path / "lm"))
    with pytest.raises(TbaError, match=r"no config\.json"):
        check_reward_model(str(tmp_path))
    with pytest.raises(TbaError, match="is not there: check the path"):
        check_reward_model(str(tmp_path / "nothing"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(TbaError, match="not valid JSON"):
        check_reward_model(str(tmp_path))


def tldr(tmp_path: Path, **sections: Any) -> Config:
    rows = tmp_path / "posts.jsonl"
    rows.write_text("".join(json.dumps({"post": f"post {i}.", "summary": "s"}) + "\n" for i in range(4)))
    task = {"kind": "tldr", "data": str(rows), "num_eval": 1}
    return parse_config({}, {"model": "arithmetic", "task": task, "engine": {"max_new_tokens": 16}, **sections})


def test_preflight_looks_at_reward_and_gold_models(tmp_path: Path, path: str) -> None:
    two = str(save_reward_model(tmp_path / "two", num_labels=2))
    check(tldr(tmp_path, reward={"model": path}))
    with pytest.raises(TbaError, match="has 2 outputs"):
        check(tldr(tmp_path, reward={"model": two}))
    with pytest.raises(TbaError, match="has 2 outputs"):
        check(tldr(tmp_path, reward={"model": path}, evaluation={"gold_model": two}))


def test_an_evaluation_needs_no_reward_but_training_does(tmp_path: Path, path: str) -> None:
    config = tldr(tmp_path, evaluation={"gold_model": path})
    check(config, to_train=False)
    with pytest.raises(TbaError, match="reward is missing"):
        check(config)
    missing = tldr(tmp_path, evaluation={"gold_model": path, "reference_model": "./nothing"})
    with pytest.raises(TbaError, match=r"evaluation.reference_model '\./nothing' is not there"):
        check(missing, to_train=False)


def test_reward_weights_count_the_reward_model_too() -> None:
    base = {"model": "x", "task": {"kind": "tldr", "data": "d"}}
    reward = {"functions": ["a:b"], "model": "r", "weights": [1, 2]}
    assert parse_config(base, {"reward": reward}).reward.weights == (1, 2)
    with pytest.raises(TbaError, match=r"1 numbers for 2 reward\.functions and reward\.model"):
        parse_config(base, {"reward": reward | {"weights": [1]}})


def test_from_python_a_reward_may_be_its_settings(tmp_path: Path) -> None:
    reward = {"model": "r", "no_eos_score": -1.0}
    task = {"task": {"kind": "tldr", "data": "d"}}
    config = parse_config(*_settings("m", None, reward, (), task))
    assert (config.reward.model, config.reward.no_eos_score) == ("r", -1.0)
