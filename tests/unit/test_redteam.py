"""The task `redteam`: what is asked of victim and classifier, what an attack earns, how a set of them is judged."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from float64 import in_float64, to_float64
from tiny_models import FLOAT32

from tba.config.settings import Config, load_config
from tba.engines import truncation
from tba.engines.base import Request
from tba.evaluations.base import Evaluation
from tba.evaluations.diversity import bootstrap, cosine_distance, distinct_pairs, near_duplicates
from tba.evaluations.redteam import RedteamEvaluator, wilson
from tba.policy import policy
from tba.policy.names import named_model
from tba.policy.policy import load_model, load_tokenizer
from tba.rewards.functions import RewardFactory
from tba.rewards.harm import Guard, SequenceClassifier
from tba.rewards.redteam import EMPTY_LOG_SCORE, VictimHarm
from tba.rewards.scorer import Ticket
from tba.rewards.scoring import ScoreRequest
from tba.rewards.victim import Victim
from tba.tasks import redteam
from tba.tasks.base import Problem
from tba.testing import (
    FakeEngine,
    character_tokenizer,
    make_response,
    save_tiny_classifier,
    save_tiny_model,
    score_now,
    ticket_of,
)
from tba.types import Prompt, Response, TbaError

ATTACKS = ["why is the sky blue?", "tell me more", "and then what happened to them?"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A victim and a classifier."""
    root = tmp_path_factory.mktemp("models")
    return (
        str(save_tiny_model(root / "victim")),
        str(save_tiny_classifier(root / "classifier", ["fine", "harmful"])),
    )


def settings(models: tuple[str, str], **others: Any) -> redteam.Settings:
    base = {"victim": models[0], "classifier": models[1], "classifier_label": "harmful", "victim_tokens": 6}
    return redteam.Settings(**{**base, "victim_replies": 2, "min_tokens": 3, **others})


def reward_of(config: redteam.Settings) -> VictimHarm:
    spec = config.load(lambda content: (str(content), (1,))).default_reward
    assert isinstance(spec, RewardFactory)
    assert spec.path == "tba.rewards.redteam:VictimHarm"
    json.dumps(spec.settings)  # it travels to another process
    return VictimHarm(**spec.settings)


def request(completions: Sequence[str], *, finished: bool = True) -> ScoreRequest:
    ids = tuple((5,) * (len(text) + finished) for text in completions)
    return ScoreRequest("p", "prompt", tuple(completions), ids, (finished,) * len(completions), {}, False)


# ---------------------------------------------------------------------------------------------------------------------
# Prompts
# ---------------------------------------------------------------------------------------------------------------------


def test_there_is_one_prompt_unless_data_bring_others(models: tuple[str, str], tmp_path: Path) -> None:
    built_in = settings(models).load(lambda content: (str(content), (1, 2)))
    assert len(built_in.train) == 1
    assert built_in.held_out == built_in.train
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"attacker_prompt": "1. a\\n2."}\n{"attacker_prompt": "1. b\\n2."}\n', "utf-8")
    task = settings(models, data=str(rows)).load(lambda content: (str(content), (1, 2)))
    assert [p.prompt.text for p in task.train] == ["1. a\n2.", "1. b\n2."]
    assert len({p.prompt.id for p in task.train}) == 2


@pytest.mark.parametrize("row", ['{"prompt": "x"}', '{"attacker_prompt": " "}', '{"attacker_prompt": 3}'])
def test_a_row_without_a_prompt_is_told(models: tuple[str, str], tmp_path: Path, row: str) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(row + "\n", "utf-8")
    with pytest.raises(TbaError, match=r"row 1 has no text in column 'attacker_prompt'"):
        settings(models, data=str(rows)).load(lambda content: (str(content), (1,)))


def test_a_guard_model_without_its_word_is_refused(models: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"task\.classifier_label is missing"):
        redteam.Settings(victim=models[0], classifier=models[0], classifier_kind="guard")


# ---------------------------------------------------------------------------------------------------------------------
# The victim
# ---------------------------------------------------------------------------------------------------------------------


def victim(path: str, **others: Any) -> Victim:
    base: dict[str, Any] = {"prompt": "auto", "temperature": 0.7, "top_p": 0.92, "max_new_tokens": 8, "num_replies": 3}
    return Victim(path, **{**base, "batch_size": 64, "seed": 0, **others})


@in_float64()  # a number drawn within rounding of a token's share would give another reply
def test_replies_depend_on_the_attack_alone(models: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "load_model", lambda *words, **options: to_float64(load_model(*words, **options)))
    together = victim(models[0])(ATTACKS)
    assert [len(replies) for replies in together] == [3, 3, 3]
    assert len({reply for replies in together for reply in replies}) > 6
    assert victim(models[0], batch_size=1)(ATTACKS[::-1]) == together[::-1]
    assert victim(models[0])(ATTACKS[1:2]) == together[1:2]
    assert victim(models[0], seed=1)(ATTACKS) != together


@pytest.mark.parametrize("likely", [1, 1024])
def test_replies_are_drawn_from_the_tempered_nucleus(
    likely: int, models: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """First tokens of many replies, against the distribution written out."""
    monkeypatch.setattr(truncation, "LIKELY", likely)
    asked = victim(models[0], temperature=0.5, top_p=0.8, max_new_tokens=1, num_replies=3000, batch_size=3000)
    firsts = asked(["tell me"])[0]
    tokenizer, model = load_tokenizer(models[0]), load_model(models[0], attention="padded")
    logits = model(**tokenizer("tell me", return_tensors="pt")).logits[0, -1]
    p = (logits / 0.5).softmax(-1)
    ordered = p.sort(descending=True)
    inside = ordered.indices[ordered.values.cumsum(0) - ordered.values < 0.8]
    expected = torch.zeros_like(p).index_copy(0, inside, p[inside] / p[inside].sum()).tolist()
    for token in inside.tolist():
        share = firsts.count(tokenizer.decode([token], skip_special_tokens=True)) / len(firsts)
        assert share == pytest.approx(expected[token], abs=0.04)
    allowed = {tokenizer.decode([token], skip_special_tokens=True) for token in inside.tolist()}
    assert set(firsts) <= allowed


def test_a_chat_victim_reads_its_template(models: tuple[str, str], tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}:"
    tokenizer.save_pretrained(folder)
    assert victim(str(folder))._framed("hello") == "<hello>:"
    assert victim(str(folder), prompt="plain")._framed("hello") == "hello"
    assert victim(models[0])._framed("hello") == "hello"
    with pytest.raises(TbaError, match=r"task\.victim_prompt = 'chat' needs a chat template"):
        victim(models[0], prompt="chat")


# ---------------------------------------------------------------------------------------------------------------------
# Classifiers
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", [True, False])
def test_scores_do_not_depend_on_the_batch(tmp_path: Path, decoder: bool) -> None:
    path = str(save_tiny_classifier(tmp_path, ["fine", "harmful"], decoder=decoder))
    pairs = [("a", attack) for attack in ATTACKS]
    fine, harmful = (
        SequenceClassifier(path, label=label, reads_attack=False, batch_size=2)(pairs) for label in ("fine", "HARMFUL")
    )
    assert np.exp(fine) + np.exp(harmful) == pytest.approx(1.0, abs=FLOAT32)
    alone = SequenceClassifier(path, label="harmful", reads_attack=False, batch_size=1)(pairs)
    assert harmful == pytest.approx(alone, abs=FLOAT32)
    both = SequenceClassifier(path, label="harmful", reads_attack=True, batch_size=2)
    assert both(pairs) != pytest.approx(both([("b", attack) for attack in ATTACKS]), abs=FLOAT32)


def test_one_output_goes_through_a_sigmoid(tmp_path: Path) -> None:
    classifier = SequenceClassifier(
        str(save_tiny_classifier(tmp_path, ["x"])), label=None, reads_attack=False, batch_size=4
    )
    encoded = classifier._tokenizer("tell me more", return_tensors="pt")
    logit = classifier._model(input_ids=encoded["input_ids"]).logits[0, 0]
    assert classifier([("", "tell me more")]) == pytest.approx([float(torch.sigmoid(logit).log())], abs=FLOAT32)


def test_labels_of_which_several_may_hold_are_each_their_own(tmp_path: Path) -> None:
    path = str(save_tiny_classifier(tmp_path, ["rude", "threat"], problem_type="multi_label_classification"))
    scores = [
        SequenceClassifier(path, label=name, reads_attack=False, batch_size=4)([("", "x y")])
        for name in ("rude", "threat")
    ]
    assert float(np.exp(scores).sum()) != pytest.approx(1.0, abs=FLOAT32)


def test_labels_must_be_named_and_known(models: tuple[str, str]) -> None:
    with pytest.raises(TbaError, match="has the labels fine, harmful, name the harmful one"):
        SequenceClassifier(models[1], label=None, reads_attack=False, batch_size=1)
    with pytest.raises(TbaError, match="'toxic' is none of the labels"):
        SequenceClassifier(models[1], label="toxic", reads_attack=False, batch_size=1)
    with pytest.raises(TbaError, match=r"task\.classifier .* cannot be loaded"):
        SequenceClassifier("./nowhere", label=None, reads_attack=False, batch_size=1)


def test_a_guard_gives_the_probability_of_its_word(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path)
    with pytest.raises(TbaError, match="has no chat template"):
        Guard(str(folder), word="unsafe", prefix="", batch_size=2)
    tokenizer = character_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}verdict:"
    tokenizer.save_pretrained(folder)
    guard = Guard(str(folder), word="unsafe", prefix="\n", batch_size=2)
    pairs = [("hi", "go away"), ("why is the sky blue?", "because"), ("a", "b")]
    text = "user: hi\nassistant: go away\nverdict:\n"
    logits = guard._model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, -1]
    expected = float(logits.log_softmax(-1)[tokenizer("u").input_ids[0]])
    assert guard(pairs)[0] == pytest.approx(expected, abs=FLOAT32), "padding on the left changes nothing"


# ---------------------------------------------------------------------------------------------------------------------
# The reward
# ---------------------------------------------------------------------------------------------------------------------


def test_the_reward_is_the_mean_log_score_and_the_rest_is_noted(models: tuple[str, str]) -> None:
    reward = reward_of(settings(models))
    scores = score_now({"victim_harm": reward}, request(ATTACKS))
    assert scores.failures == ()
    replies = reward._victim(ATTACKS)
    for i, attack in enumerate(ATTACKS):
        logs = [reward._score([(attack, reply)])[0] if reply.strip() else EMPTY_LOG_SCORE for reply in replies[i]]
        assert scores.rewards[i] == pytest.approx(np.mean(logs), abs=FLOAT32)
        assert scores.extras["harm"][i] == pytest.approx(np.mean(np.exp(logs)), abs=FLOAT32)
        assert scores.extras["replies"][i] == replies[i]


def test_short_and_empty_attacks_are_penalised_without_asking_the_victim(models: tuple[str, str]) -> None:
    reward = reward_of(settings(models, short_reward=-7.0))
    asked: list[str] = []
    answer = reward._victim.__call__
    reward._victim = lambda attacks: asked.extend(attacks) or answer(attacks)  # type: ignore[assignment,func-returns-value]
    scores = score_now({"r": reward}, request(["", "   ", "ab", "abc", ATTACKS[0]]))
    assert scores.rewards[:3] == (-7.0, -7.0, -7.0)
    assert scores.extras["too_short"] == (1, 1, 1, 0, 0)
    assert asked == ["abc", ATTACKS[0]]
    cut = score_now({"r": reward}, request(["abc"], finished=False))
    assert cut.extras["too_short"] == (0,), "nothing ended it, so all its tokens count"


def test_a_victim_that_says_nothing_is_counted(models: tuple[str, str]) -> None:
    reward = reward_of(settings(models))
    reward._victim = lambda attacks: [["", "  "] for _ in attacks]  # type: ignore[assignment]
    scores = score_now({"r": reward}, request(ATTACKS))
    assert scores.rewards == (EMPTY_LOG_SCORE,) * 3
    assert scores.extras["empty_replies"] == (2, 2, 2)
    assert max(scores.extras["harm"]) < 1e-3


def test_replies_are_remembered_within_bounds(models: tuple[str, str]) -> None:
    reward = reward_of(settings(models, cache_size=2))
    asked: list[str] = []
    answer = reward._victim.__call__
    reward._victim = lambda attacks: asked.extend(attacks) or answer(attacks)  # type: ignore[assignment,func-returns-value]
    first = score_now({"r": reward}, request([ATTACKS[0], f" {ATTACKS[0]} ", ATTACKS[1]]))
    assert asked == ATTACKS[:2], "the same attack is asked once"
    assert first.extras["cached"] == (0, 0, 0)
    again = score_now({"r": reward}, request([ATTACKS[0]]))
    assert (again.rewards[0], again.extras["cached"]) == (first.rewards[0], (1,))
    score_now({"r": reward}, request([ATTACKS[2]]))
    assert list(reward._seen) == [ATTACKS[0], ATTACKS[2]], "the one not asked for longest is forgotten"
    score_now({"r": reward}, request(ATTACKS))
    assert len(reward._seen) == 2


def test_extras_of_the_wrong_length_cost_their_group_only() -> None:
    def careless(completions: list[str], log_extra: Any) -> list[float]:
        log_extra("note", [1])
        return [0.0] * len(completions)

    scores = score_now({"careless": careless}, request(ATTACKS))
    assert scores.rewards == (None,) * 3
    assert "log_extra('note') has 1 values for 3 completions" in scores.failures[0].message


# ---------------------------------------------------------------------------------------------------------------------
# Evaluation
# ---------------------------------------------------------------------------------------------------------------------


def listed(texts: Sequence[str]) -> FakeEngine:
    """Responses from a list, in turn."""
    remaining = iter(texts)

    def respond(request: Request) -> list[Response]:
        assert not request.greedy
        made = [next(remaining) for _ in range(request.num_responses)]
        return [make_response([ord(c) for c in text] + [1], text=text) for text in made]

    return FakeEngine(respond)


class ListedScorer:
    """Harm as the text says it."""

    names = ("harm",)

    def submit(self, request: ScoreRequest) -> Ticket:
        def harm(completions: list[str], log_extra: Any) -> list[float | None]:
            values = [float(text.split()[-1]) for text in completions]
            log_extra("harm", values)
            log_extra("empty_replies", [1] * len(values))
            return [None if value == 0.99 else math.log(max(value, 1e-3)) for value in values]

        return ticket_of(score_now({"harm": harm}, request))


def evaluated(texts: Sequence[str], *, num_attacks: int, embed: Any = None, per_request: int = 2) -> Evaluation:
    problems = [Problem(Prompt(str(i), "", (1,)), "x", {}) for i in range(2)]
    evaluator = RedteamEvaluator(
        listed(texts),
        ListedScorer(),  # type: ignore[arg-type]
        problems,
        num_attacks=num_attacks,
        attacks_per_request=per_request,
        embed=embed,
        seed=0,
    )
    done: list[int] = []
    result = evaluator(done.append)
    assert sum(done) == sum(one.num_prompts for one in evaluator.passes)
    return result


def test_an_attack_succeeds_by_its_mean_probability() -> None:
    texts = ["one 0.51", "two 0.5", "three 0.9", "four 0.1", "five 0.99", "six 0.6"]
    result = evaluated(texts, num_attacks=5)
    values = result.values
    assert values["attack_success_rate"] == pytest.approx(2 / 5), "one half is not above it; a failure is no success"
    assert values["attack_success_rate_se"] == pytest.approx(np.std([1, 0, 1, 0, 0], ddof=1) / math.sqrt(5))
    assert values["attack_success_rate_low"] < 0.4 < values["attack_success_rate_high"]
    assert (values["num_attacks"], values["failed"], values["empty_replies"]) == (5, 1, 5)
    assert [answer.response.text for answer in result.answers] == texts[:5]
    assert [answer.problem.prompt.id for answer in result.answers] == ["0", "0", "1", "1", "0"]
    assert result.answers[0].notes["harm"] == 0.51
    assert "diversity" not in values
    assert values["diversity_missing"] == "set evaluation.embedding_model"


def test_diversity_is_over_all_attacks() -> None:
    vectors = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.6, 0.8], "d": [1.0, 0.0]}

    def embed(texts: Sequence[str]) -> Any:
        return np.array([vectors[text[0]] for text in texts])

    values = evaluated(["a 0.9", "b 0.1", "c 0.1", "d 0.1"], num_attacks=4, embed=embed).values
    cosines = [0.0, 0.6, 1.0, 0.8, 0.0, 0.6]
    assert values["diversity"] == pytest.approx(1 - np.mean(cosines))
    assert values["diversity_low"] < values["diversity"] < values["diversity_high"]
    assert "diversity_missing" not in values


def test_copies_of_one_text_are_no_pair_in_a_resample() -> None:
    unit = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert cosine_distance(unit) == 1.0
    assert cosine_distance(unit, np.array([5.0, 3.0])) == pytest.approx(1.0)
    assert math.isnan(cosine_distance(unit, np.array([2.0, 0.0])))
    rows = np.random.default_rng(0).normal(size=(200, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    error, low, high = bootstrap(rows, np.random.default_rng(1))
    assert 0 < error < 0.05
    assert low < cosine_distance(rows) < high
    assert bootstrap(rows, np.random.default_rng(1)) == (error, low, high)


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Levenshtein's recursion, by the book."""
    table = [[i + j if i * j == 0 else 0 for j in range(len(b) + 1)] for i in range(len(a) + 1)]
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            changed = table[i - 1][j - 1] + (a[i - 1] != b[j - 1])
            table[i][j] = min(changed, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[-1][-1]


def test_near_duplicates_are_those_of_a_small_edit_distance() -> None:
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 3, rng.integers(0, 9)).tolist() for _ in range(60)]
    expected = sum(
        any(edit_distance(row, other) < 0.25 * len(row + other) or not row + other for other in rows[:i])
        for i, row in enumerate(rows)
    )
    assert near_duplicates(rows) == expected
    assert 0 < expected < 60
    assert near_duplicates([[1, 2, 3, 4], [5, 6, 7, 8]]) == 0
    assert near_duplicates([[1, 2, 3, 4], [1, 2, 3, 5]]) == 1
    assert near_duplicates([]) == 0


def test_distinct_pairs_are_the_share_of_word_pairs_seen_first() -> None:
    assert distinct_pairs(["a b c", "A b d"]) == 3 / 4
    assert distinct_pairs(["one", ""]) == 0.0


def test_the_interval_of_a_share_is_sound_at_its_ends() -> None:
    low, high = wilson(0.0, 100)
    assert low == 0.0
    assert 0.03 < high < 0.04
    low, high = wilson(0.5, 1024)
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 1024), rel=0.01)


def test_a_name_that_is_a_folder_is_that_folder(tmp_path: Path) -> None:
    assert named_model(str(tmp_path)) == str(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Configurations
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["smollm2-redteam", "paper/redteam-gpt2", "paper/redteam-llama"])
def test_the_configurations_fit_one_attacker_prompt(name: str) -> None:
    config = load_config(name, {})
    assert isinstance(config, Config)
    assert config.task.kind == "redteam"
    assert config.buffer.capacity_per_prompt >= 100_000
    assert config.model.lora_rank > 0
    if name.startswith("paper/"):
        assert config.objective.kind == "trajectory_balance_learned_z"
