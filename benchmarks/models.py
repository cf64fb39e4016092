"""Models and groups to measure on: the embedded one, SmolLM2-135M, and its shape with random weights.

Speed does not depend on what the weights say, except that responses of a sure model repeat each other and end, which
the engine makes use of. Random weights over a large vocabulary do neither: they are its worst case.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tba.learn.evidence import Pass, totals_of
from tba.objectives import Loss
from tba.objectives.trajectory_balance import trajectory_balance
from tba.policy.batch import collate
from tba.policy.policy import Policy, load_model
from tba.types import Group, Prompt, Response, TbaError, Trajectory, Version

LARGE = "SmolLM2-135M's shape"
SMOLLM2 = "TBA_SMOLLM2"
"""Environment variable: the folder `tba fetch smollm2` wrote."""

QUESTIONS = (
    "A baker fills 14 trays with 12 rolls each and sells 97 rolls before noon. How many rolls are left?",
    "Mara walks 3 km to work and takes the bus back. How far does she walk in a month of 21 working days?",
    "A tank holds 240 litres. Two pumps take out 9 and 15 litres a minute. After how many minutes is it empty?",
    "Each of 6 shelves has 18 books, and a third of all books are novels. How many novels are there?",
    "Tickets cost 8 euros, half that for children. What do 3 adults and 5 children pay together?",
    "Jonas saves 25 euros a week and spends 40 of it once a month. How much does he have after 12 weeks?",
    "A train is 35 minutes late and arrives at ten past four. When should it have arrived, in minutes after three?",
    "A garden is 22 m long and 9 m wide. How many metres of fence does it need with a gate of 2 m left open?",
)
"""Of the kind models of this size are trained on."""


def smollm2_path() -> str:
    path = os.environ.get(SMOLLM2)
    if path is None:
        raise TbaError(f"{SMOLLM2} is not set: name the folder that `tba fetch smollm2` writes")
    return path


def small() -> PreTrainedModel:
    """The embedded model: about a million parameters."""
    return load_model("arithmetic")


def large(num_layers: int = 30) -> PreTrainedModel:
    """SmolLM2-135M's shape. Fewer layers keep the ratio of layer and head work close, and the run short."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=num_layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.eval()
    return model


def flops_a_token(model: PreTrainedModel) -> float:
    """Of a forward pass without attention's own products: two for each weight that is multiplied by."""
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    looked_up = 0 if tied else model.num_parameters() - model.num_parameters(exclude_embeddings=True)
    return 2.0 * (model.num_parameters() - looked_up)


def prompts(count: int, length: int, vocabulary: int, rng: np.random.Generator) -> list[Prompt]:
    return [Prompt(str(i), "", tuple(rng.integers(3, vocabulary, length).tolist())) for i in range(count)]


def group(prompt: Prompt, lengths: NDArray[np.int64], vocabulary: int, rng: np.random.Generator) -> Group:
    def trajectory(length: int) -> Trajectory:
        tokens = rng.integers(3, vocabulary, length).astype(np.int32)
        zeros = np.zeros(length, dtype=np.float32)
        return Trajectory(Response(tokens, zeros, ((Version(0, 0), length),), "", True), float(rng.random()), (), zeros)

    return Group(prompt, tuple(trajectory(int(length)) for length in lengths))


def balance_of(policy: Policy, data: Group, beta: float) -> Loss:
    """Trajectory balance of one group, computed in one pass."""
    batch = collate([data], max_tokens=10**9)
    age_GK = torch.zeros(batch.reward_GK.shape, dtype=torch.long)
    seen = Pass(batch, age_GK, 1, totals_of([data])).evidence(policy(batch.parts[0]))
    return trajectory_balance(seen.policy_GK, seen.reference_GK, seen.reward_GK, beta=beta)
