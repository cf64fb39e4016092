"""Small stand-ins for tests, yours as well as ours: a tiny model that needs no download, and made-up groups."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tba.engines.base import Finished, Request
from tba.rewards.functions import RewardFunction
from tba.rewards.scorer import Ticket
from tba.rewards.scoring import GroupScoring, ScoreRequest, Scores
from tba.types import NEVER_PUBLISHED, Group, Prompt, Response, Trajectory, Version, WeightUpdate

ALPHABET = string.digits + string.ascii_lowercase + "+-=<>.,:?# \n"


def save_tiny_model(directory: Path, *, alphabet: str = ALPHABET, hidden_size: int = 32, seed: int = 0) -> Path:
    """Write a random two-layer Llama and a tokenizer of single characters: a folder like any from the hub."""
    tokenizer = character_tokenizer(alphabet)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        # Far enough from zero that its distributions differ from the uniform one.
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def save_tiny_classifier(
    directory: Path,
    labels: Sequence[str] = ("score",),
    *,
    decoder: bool = False,
    seed: int = 0,
    chat_template: str | None = None,
    **changes: Any,
) -> Path:
    """Write a random sequence classifier over the same characters, an encoder or a decoder; with one label, a reward
    model. `changes` go to its configuration."""
    tokenizer = character_tokenizer()
    tokenizer.chat_template = chat_template
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "pad_token_id": tokenizer.pad_token_id,
        "id2label": dict(enumerate(labels)),
        "label2id": {name: i for i, name in enumerate(labels)},
        "initializer_range": 0.5,
        **changes,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = (
            LlamaForSequenceClassification(LlamaConfig(**sizes))
            if decoder
            else BertForSequenceClassification(BertConfig(**sizes))
        )
        model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def character_tokenizer(alphabet: str = ALPHABET) -> PreTrainedTokenizerFast:
    """One token per character, after `<pad>`, `<eos>` and `<unk>`."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *dict.fromkeys(alphabet)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def make_response(
    tokens: Sequence[int], *, version: Version | int = 0, finished: bool = True, text: str = ""
) -> Response:
    """A response of these tokens, each with log-probability −1. A number is short for a step of epoch 0."""
    logprobs = np.full(len(tokens), -1.0, np.float32)
    runs = ((Version.read(version), len(tokens)),)
    return Response(np.asarray(tokens, np.int32), logprobs, runs, text, finished)


def make_group(
    prompt: Sequence[int],
    responses: Iterable[Sequence[int]],
    rewards: Iterable[float],
    *,
    prompt_id: str = "prompt",
    source: str = "searcher-0",
    serial: int = 1,
    version: Version | int = 0,
) -> Group:
    """A scored group of these tokens. The reference finds every token as likely as the policy did."""
    made = [make_response(tokens, version=version) for tokens in responses]
    trajectories = tuple(
        Trajectory(response, reward, (reward,), response.token_logprobs)
        for response, reward in zip(made, rewards, strict=True)
    )
    return Group(Prompt(prompt_id, "", tuple(prompt)), trajectories, source, serial)


class FakeEngine:
    """An engine without a model: a function makes all responses to a request, in one step."""

    def __init__(self, respond: Callable[[Request], list[Response]]) -> None:
        self.respond = respond
        self.version = NEVER_PUBLISHED
        self.requests: list[Request] = []
        """All that were ever submitted."""
        self._waiting: list[Request] = []

    num_running = 0

    @property
    def num_waiting(self) -> int:
        return sum(request.num_responses for request in self._waiting)

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        self._waiting.append(request)

    def collect(self, num_rows: int) -> list[Finished]:
        """Requests finish in the order of submission, as many at a time as there are rows for, at least one."""
        num = 0
        done: list[Finished] = []
        while self._waiting and num_rows and (not done or num + self._waiting[0].num_responses <= num_rows):
            request = self._waiting.pop(0)
            num += request.num_responses
            done.append(Finished(request.id, self.respond(request)))
        return done

    def load(self, update: WeightUpdate) -> None:
        self.version = update.version

    def abort(self, ids: Sequence[int]) -> None:
        self._waiting = [request for request in self._waiting if request.id not in ids]

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to do."""


def ticket_of(scores: Scores) -> Ticket:
    """A ticket for scores that are there already, for stand-ins of the Scorer."""
    future: Future[Scores] = Future()
    future.set_result(scores)
    return Ticket(future)


def score_now(
    functions: Mapping[str, RewardFunction], request: ScoreRequest, weights: Sequence[float] | None = None
) -> Scores:
    """What reward functions make of a request, in this process: to try a reward without a run."""
    scoring = GroupScoring(functions, weights or [1.0] * len(functions), request)
    scoring.begin()
    if scoring.is_waiting:
        asyncio.run(scoring.finish())
    return scoring.scores()
