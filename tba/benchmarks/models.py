"""Models and groups to measure on: the embedded one, and the shape of SmolLM2-135M with random weights.

Speed does not depend on what the weights say, except that responses of a sure model repeat each other, which the
engine makes use of. Random weights over a large vocabulary never do: they are its worst case.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from tba.types import Group, Prompt, Response, Trajectory

LARGE = "SmolLM2-135M's shape"


def small() -> PreTrainedModel:
    """The embedded model: about a million parameters."""
    from tba.policy import load_model

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
        return Trajectory(Response(tokens, zeros, ((0, length),), "", True), float(rng.random()), (), zeros)

    return Group(prompt, tuple(trajectory(int(length)) for length in lengths))
