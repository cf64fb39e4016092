"""No tensor is made without a device: with another default device everything still runs where its model is.

torch's default device is set to `meta` while every real tensor is on the device under test. A tensor that is made
without a device then holds no numbers, and mixing it with others raises. What passes here on the CPU needs no more than
a model on a GPU to run there, and where there is one, these very tests run on it. (`torch.from_numpy` is not caught:
`tba.policy.devices.as_tensor` is the place for it.)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from devices_here import DEVICES, assert_same, elsewhere
from tiny_models import answered
from torch.testing import assert_close
from trainer_cases import OBJECTIVES, ages, groups_with_copies, learner_in, parameters
from transformers import PreTrainedModel

from tba.engines.base import Request, generate
from tba.engines.transformers import TransformersEngine
from tba.evaluations.accuracy import AccuracyEvaluator
from tba.evaluations.embeddings import Embedder
from tba.evaluations.preference import PreferenceEvaluator
from tba.evaluations.redteam import RedteamEvaluator
from tba.learn import learner as learner_module
from tba.policy.devices import as_tensor, moved
from tba.policy.lora import merged, without_adapters
from tba.policy.policy import Policy, Reference, export_weights, import_weights, load_model, load_tokenizer
from tba.rewards.functions import RewardFunction
from tba.rewards.harm import Guard, SequenceClassifier
from tba.rewards.redteam import VictimHarm
from tba.rewards.reward_model import RewardModel
from tba.rewards.scorer import Ticket
from tba.rewards.scoring import ScoreRequest, Scores
from tba.rewards.victim import Victim
from tba.tasks.base import Problem
from tba.testing import save_tiny_classifier, save_tiny_model, score_now
from tba.types import Prompt, Version, WeightUpdate

PACKAGE = Path(__file__).parents[2] / "tba"
ATTACKS = ["why is the sky blue?", "tell me more", "and then what happened to them?"]
PAIRS = [(attack, reply) for attack in ATTACKS for reply in ("no", "yes, of course", "well")]
CHAT = "{% for m in messages %}<{{ m.content }}>{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def scorer_of_texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A reward model: an encoder with one output."""
    return str(save_tiny_classifier(tmp_path_factory.mktemp("scorer")))


def model_on(device: str, folder: str, attention: str = "auto") -> PreTrainedModel:
    return moved(load_model(folder, attention=attention), torch.device(device))


def test_a_tensor_without_a_device_would_be_noticed() -> None:
    """The guard of the guards."""
    here = torch.ones(3)
    with elsewhere(), pytest.raises(RuntimeError, match="meta"):
        here + torch.ones(3)


def test_arrays_become_tensors_in_one_place() -> None:
    """`torch.from_numpy` is always on the CPU, and no other default device would show it."""
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "benchmarks" not in path.parts and re.search(r"\bfrom_numpy\(", path.read_text("utf-8"))
    }
    assert users == {"policy/devices.py"}


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["auto", "padded"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_training_step_stays_where_its_model_is(
    tmp_path: Path, folder: str, attention: str, name: str, device: str
) -> None:
    """Whole groups, groups in parts, and the same numbers as without."""
    groups = groups_with_copies(3, 0)
    for budget in (1_000_000, 40):
        plain, strict = (
            learner_in(
                tmp_path / f"{place}-{budget}",
                folder,
                attention=attention,
                objective=OBJECTIVES[name],
                device=place,
                micro_batch_tokens=budget,
            )
            for place in ("cpu", device)
        )
        expected = plain.step(groups, ages(groups), 1)
        with elsewhere():
            found = strict.step(groups, ages(groups), 1)
        assert_same([found.loss, found.grad_norm], [expected.loss, expected.grad_norm], device)
        if (
            device == "cpu"
        ):  # where a gradient is nearly nothing, rounding decides its sign, and Adam takes a whole step
            assert_same_weights(strict.policy.model, plain.policy.model)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_learner_saves_from_its_device_and_goes_on_there(
    tmp_path: Path, folder: str, name: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_on_cpu(path: str) -> PreTrainedModel:
        with torch.device("cpu"):  # transformers itself reads files to the default device
            return load_model(path)

    monkeypatch.setattr(learner_module, "load_model", load_on_cpu)
    groups = groups_with_copies(3, 0)
    saved, loaded = (learner_in(tmp_path / str(i), folder, objective=OBJECTIVES[name], device=device) for i in range(2))
    with elsewhere():
        saved.step(groups, ages(groups), 1)
        (tmp_path / "saved").mkdir()
        saved.save(tmp_path / "saved")
        loaded.load(tmp_path / "saved")
    assert_same_weights(loaded.policy.model, saved.policy.model)
    with elsewhere():
        expected, found = (learner.step(groups, ages(groups), 2) for learner in (saved, loaded))
    assert_same([found.loss, found.grad_norm], [expected.loss, expected.grad_norm], device)


@pytest.mark.parametrize("device", DEVICES)
def test_adapters_stay_where_their_model_is(tmp_path: Path, folder: str, device: str) -> None:
    """A training step, a pass of the base as the reference, and a checkpoint, whose model is merged on the CPU."""
    pytest.importorskip("peft")
    groups, asked = groups_with_copies(3, 0), answered([(5, [3, 8, 1])])
    plain, strict = (
        learner_in(tmp_path / str(i), folder, device=d, lora_rank=2) for i, d in enumerate(("cpu", device))
    )
    base = Reference(Policy(load_model(folder), temperature=0.8), max_tokens=100).token_logprobs(asked)
    expected = plain.step(groups, ages(groups), 1)
    (tmp_path / "saved").mkdir()
    with elsewhere():
        found = strict.step(groups, ages(groups), 1)
        view = Reference(strict.policy, max_tokens=100, as_reference=lambda: without_adapters(strict.policy.model))
        reference = view.token_logprobs(asked)
        assert {p.device.type for p in merged(strict.policy.model).parameters()} == {"cpu"}
        strict.save(tmp_path / "saved")
    assert_same([found.loss, found.grad_norm], [expected.loss, expected.grad_norm], device)
    assert_same(np.concatenate(reference[0]), np.concatenate(base[0]), device)
    assert (tmp_path / "saved" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_published_as_bytes_of_the_host(folder: str, tmp_path: Path, device: str) -> None:
    here, there = model_on(device, folder), model_on(device, str(save_tiny_model(tmp_path, seed=1)))
    with elsewhere():
        published = export_weights(here)
        import_weights(there, published)
    assert all(tensor.dtype == np.uint8 for tensor in published.values())
    assert_same_weights(there, here)


def assert_same_weights(found: PreTrainedModel, expected: PreTrainedModel) -> None:
    assert_close(parameters(found), parameters(expected), rtol=0, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_an_engine_that_keeps_bfloat16_generates_a_little_off_policy(folder: str, attention: str, device: str) -> None:
    whole = Reference(Policy(model_on(device, folder, attention), temperature=0.9), max_tokens=100)
    half = moved(load_model(folder, attention=attention, dtype="bfloat16"), torch.device(device))
    engine = TransformersEngine(half, load_tokenizer(folder), temperature=0.9, max_new_tokens=6, seed=0)
    engine.load(WeightUpdate(Version(0, 1), export_weights(load_model(folder))))
    prompts = [problem.prompt for problem in problems(folder)]
    responses = generate(engine, prompts, 4)
    views = whole.token_logprobs(list(zip(prompts, responses, strict=True)))
    off = [
        r.token_logprobs - v for row, view in zip(responses, views, strict=True) for r, v in zip(row, view, strict=True)
    ]
    assert 0 < np.abs(np.concatenate(off)).mean() < 0.1


# ---------------------------------------------------------------------------------------------------------------------
# The reference
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_a_reference_pass_stays_where_its_model_is(folder: str, attention: str, device: str) -> None:
    plain, strict = (Reference(Policy(model_on(place, folder, attention)), max_tokens=30) for place in ("cpu", device))
    asked = answered([(5, [3, 8, 1]), (2, [6, 6])])
    with elsewhere():
        found = strict.token_logprobs(asked)
    flat, expected = (
        np.concatenate([r for row in views for r in row]) for views in (found, plain.token_logprobs(asked))
    )
    assert_same(flat, expected, device)


@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_generation_stays_where_its_model_is(folder: str, attention: str) -> None:
    """With rows that are refilled, temperatures of different requests, and greedy ones beside them."""

    def generated() -> list[list[int]]:
        for number, (length, temperature) in enumerate([(5, None), (2, 1.3), (9, 0.7), (3, None)]):
            prompt = Prompt(str(number), "", tuple(range(5, 5 + length)))
            engine.submit(Request(number, prompt, 3, temperature, greedy=number == 3, seed=number))
        found: dict[int, list[list[int]]] = {}
        while engine.num_running or engine.num_waiting:
            found |= {done.id: [r.tokens.tolist() for r in done.responses] for done in engine.collect(5)}
        return [tokens for number in sorted(found) for tokens in found[number]]

    model, tokenizer = load_model(folder, attention=attention), load_tokenizer(folder)
    engine = TransformersEngine(model, tokenizer, temperature=0.9, max_new_tokens=20, seed=0)
    expected = generated()
    with torch.device("meta"):
        assert generated() == expected


# ---------------------------------------------------------------------------------------------------------------------
# Rewards
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoder", [True, False])
def test_a_reward_model_stays_where_it_is(tmp_path: Path, decoder: bool, device: str) -> None:
    path = str(save_tiny_classifier(tmp_path, decoder=decoder))
    plain, strict = (RewardModel(path, batch_size=2, device=place) for place in ("cpu", device))
    asked = ["a prompt:"] * 3, ATTACKS, [True, False, True]
    with elsewhere():
        found = strict(*asked)
    assert_same(found, plain(*asked), device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoder", [True, False])
def test_a_classifier_stays_where_it_is(tmp_path: Path, decoder: bool, device: str) -> None:
    path = str(save_tiny_classifier(tmp_path, ["fine", "harmful"], decoder=decoder))
    plain, strict = (
        SequenceClassifier(path, label="harmful", reads_attack=True, batch_size=4, device=place)
        for place in ("cpu", device)
    )
    with elsewhere():
        found = strict(PAIRS)
    assert_same(found, plain(PAIRS), device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_guard_stays_where_it_is(tmp_path: Path, device: str) -> None:
    path = save_tiny_model(tmp_path)
    tokenizer = load_tokenizer(str(path))
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(path)
    plain, strict = (Guard(str(path), word="u", prefix="", batch_size=4, device=place) for place in ("cpu", device))
    with elsewhere():
        found = strict(PAIRS)
    assert_same(found, plain(PAIRS), device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_victim_stays_where_it_is(folder: str, device: str) -> None:
    plain, strict = (
        Victim(
            folder,
            prompt="plain",
            temperature=0.7,
            top_p=0.92,
            max_new_tokens=6,
            num_replies=2,
            batch_size=4,
            seed=0,
            device=place,
        )
        for place in ("cpu", device)
    )
    with elsewhere():
        found = strict(ATTACKS)
    if device == "cpu":  # elsewhere rounding may draw another token
        assert found == plain(ATTACKS)
    assert [len(replies) for replies in found] == [2, 2, 2]


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations
# ---------------------------------------------------------------------------------------------------------------------


class InThisProcess:
    """A scorer whose functions see the default device too."""

    def __init__(self, **functions: RewardFunction) -> None:
        self.names = tuple(functions)
        self._functions = functions

    def submit(self, request: ScoreRequest) -> Ticket:
        done: Future[Scores] = Future()
        done.set_result(score_now(self._functions, request))
        return Ticket(done)

    def score(self, requests: Sequence[ScoreRequest]) -> list[Scores]:
        return [self.submit(request).result() for request in requests]

    def __enter__(self) -> InThisProcess:
        return self

    def __exit__(self, *_: object) -> None: ...


def engine_on(device: str, folder: str) -> TransformersEngine:
    return TransformersEngine(
        model_on(device, folder), load_tokenizer(folder), temperature=0.9, max_new_tokens=6, seed=0
    )


def problems(folder: str) -> list[Problem]:
    tokenizer = load_tokenizer(folder)
    return [
        Problem(Prompt(text, text, tuple(tokenizer(text).input_ids)), text, {"answer": "7"}, " a summary")
        for text in ATTACKS
    ]


def count_letters(completions: Sequence[str], **_: Any) -> list[float]:
    return [float(sum(map(str.isalpha, text))) for text in completions]


def accuracy_on(device: str, folder: str, scorer: str) -> AccuracyEvaluator:
    return AccuracyEvaluator(
        engine_on(device, folder),
        InThisProcess(count_letters=count_letters),  # type: ignore[arg-type]
        problems(folder),
        num_samples=2,
        success_reward=1.5,
        prompts_per_batch=2,
    )


def preference_on(device: str, folder: str, scorer: str) -> PreferenceEvaluator:
    judge = InThisProcess(gold_model=RewardModel(scorer, device=device))
    return PreferenceEvaluator(
        engine_on(device, folder),
        judge,  # type: ignore[arg-type]
        problems(folder),
        num_samples=2,
        prompts_per_batch=2,
        num_tokens=len,
        gold=lambda: judge,  # type: ignore[arg-type, return-value]
        reference=Reference(Policy(model_on(device, folder), temperature=0.9), max_tokens=40),
        untempered=Reference(Policy(model_on(device, folder)), max_tokens=40),
    )


def redteam_on(device: str, folder: str, scorer: str) -> RedteamEvaluator:
    reward = VictimHarm(
        victim=folder,
        victim_device=device,
        victim_prompt="plain",
        victim_temperature=0.7,
        victim_top_p=0.92,
        victim_tokens=5,
        victim_replies=2,
        classifier=scorer,
        classifier_device=device,
        classifier_kind="sequence_classification",
        classifier_label=None,
        classifier_input="reply",
        guard_prefix="",
        batch_size=8,
        cache_size=10,
        min_tokens=1,
        short_reward=-10.0,
        seed=0,
    )
    return RedteamEvaluator(
        engine_on(device, folder),
        InThisProcess(victim_harm=reward),  # type: ignore[arg-type]
        problems(folder),
        num_attacks=6,
        attacks_per_request=2,
        embed=Embedder(scorer, batch_size=4, device=device),
        seed=0,
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("build", [accuracy_on, preference_on, redteam_on])
def test_an_evaluation_stays_where_its_models_are(
    build: Callable[..., Any], folder: str, scorer_of_texts: str, device: str
) -> None:
    strict = build(device, folder, scorer_of_texts)
    with elsewhere():
        found = strict().values
    if device == "cpu":  # elsewhere rounding may draw another token
        np.testing.assert_equal(found, build("cpu", folder, scorer_of_texts)().values)
    assert found["reward"] == found["reward"], "a number"


@pytest.mark.parametrize("device", DEVICES)
def test_an_embedder_stays_where_it_is(scorer_of_texts: str, device: str) -> None:
    plain, strict = (Embedder(scorer_of_texts, batch_size=2, device=place) for place in ("cpu", device))
    with elsewhere():
        found = strict(ATTACKS)
    assert_same(found, plain(ATTACKS), device)


@pytest.mark.parametrize("device", DEVICES)
def test_an_array_becomes_a_tensor_on_the_device(device: str) -> None:
    array = np.arange(6).reshape(2, 3)[:, ::2]
    tensor = as_tensor(array, torch.device(device))
    assert tensor.device.type == device
    assert tensor.tolist() == array.tolist()
