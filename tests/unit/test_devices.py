"""No tensor is made without a device: with another default device everything still runs where its model is.

torch's default device is set to `meta` while every real tensor is on the CPU. A tensor that is made without a device
then holds no numbers, and mixing it with others raises. What passes here needs no more than a model on a GPU to run
there. (`torch.from_numpy` is not caught: `tba.devices.as_tensor` is the place for it.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import answered
from torch.testing import assert_close
from trainer_cases import OBJECTIVES, ages, groups_with_copies, learner_in, parameters

from tba.engines.base import Request
from tba.engines.transformers import TransformersEngine
from tba.policy import Policy, Reference, load_model, load_tokenizer
from tba.testing import save_tiny_model
from tba.types import Prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


def test_a_tensor_without_a_device_would_be_noticed() -> None:
    """The guard of the guards."""
    here = torch.ones(3)
    with torch.device("meta"), pytest.raises(RuntimeError, match="meta"):
        here + torch.ones(3)


@pytest.mark.parametrize("attention", ["auto", "padded"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_training_step_stays_where_its_model_is(tmp_path: Path, folder: str, attention: str, name: str) -> None:
    """Whole groups, groups in parts, and the same numbers as without."""
    groups = groups_with_copies(3, 0)
    for budget in (1_000_000, 40):
        plain, strict = (
            learner_in(
                tmp_path / f"{i}-{budget}",
                folder,
                attention=attention,
                objective=OBJECTIVES[name],
                micro_batch_tokens=budget,
            )
            for i in range(2)
        )
        expected = plain.step(groups, ages(groups), 1)
        with torch.device("meta"):
            found = strict.step(groups, ages(groups), 1)
        assert found.loss == expected.loss
        assert_close(parameters(strict.policy.model), parameters(plain.policy.model), rtol=0, atol=0)


@pytest.mark.parametrize("attention", ["auto", "padded"])
def test_a_reference_pass_stays_where_its_model_is(folder: str, attention: str) -> None:
    reference = Reference(Policy(load_model(folder, attention=attention)), max_tokens=30)
    asked = answered([(5, [3, 8, 1]), (2, [6, 6])])
    expected = reference.token_logprobs(asked)
    with torch.device("meta"):
        found = reference.token_logprobs(asked)
    flat, expected_flat = (np.concatenate([r for row in views for r in row]) for views in (found, expected))
    assert np.array_equal(flat, expected_flat)


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
