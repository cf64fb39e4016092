"""Load models, and the log-probability of responses under them.

`Policy` is the only place where log-probabilities are computed, for the policy and for the reference alike, so a
difference of kernels cannot pose as a difference of models. Generation is not here (`engines/`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from tba.attention import SHARED_PROMPT, PackedGroups, ResponseBlock, supports_shared_prompt
from tba.batch import Answered, PackedTokens, distinct, pack, split_by_tokens
from tba.loading import load_weights, told_in_one_line
from tba.logits import target_logprobs
from tba.precision import at_least_float32
from tba.types import TbaError, TokenLogprobs

transformers_logging.disable_progress_bar()

WORTH_A_BLOCK = 2**14
"""Pairs of query and key that attention must be spared, for a head, to make up for one more call of it."""


def model_directory(path: str) -> str:
    """The name a user gives to what transformers loads: `arithmetic` is the embedded model."""
    if path == "arithmetic" and not Path(path).exists():
        return str(resources.files("tba").joinpath("models", "arithmetic"))
    return path


def load_model(
    path: str, *, attention: str = "auto", trust_remote_code: bool = False, setting: str = "model"
) -> PreTrainedModel:
    """A causal LM in float32, in evaluation mode (no dropout: trajectory balance needs one density).

    TbaError if any of its weights is not in its files: each process would make up its own.
    """
    source, what = model_directory(path), f"{setting} {path!r}"
    with told_in_one_line(f"{what} cannot be loaded"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        model = load_weights(AutoModelForCausalLM, source, what, config=config, trust_remote_code=trust_remote_code)
    if getattr(model, "_is_stateful", False):
        raise TbaError(f"model {path!r} ({type(model).__name__}) keeps recurrent state, which no engine here supports")
    shared = supports_shared_prompt(type(model), config)
    if attention == "shared" and not shared:
        raise TbaError(f"model.attention = 'shared' does not fit {type(model).__name__}: use 'padded' or 'auto'")
    if attention != "padded" and shared:
        model.set_attn_implementation(SHARED_PROMPT)
    return model


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    with told_in_one_line(f"no tokenizer for model {path!r}"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            model_directory(path), trust_remote_code=trust_remote_code
        )
    return tokenizer


def uses_shared_prompt(model: PreTrainedModel) -> bool:
    return bool(model.config._attn_implementation == SHARED_PROMPT)


class Logprobs(NamedTuple):
    """What a forward pass says of a packed batch."""

    tokens_T: Tensor
    """Log-probability of every response token that the policy wrote."""
    prompt_GH: Tensor
    """The mean of each prompt's last hidden states, without a gradient."""


class Policy(nn.Module):
    """A causal LM as a density over responses, at one temperature: its forward pass is their log-probabilities.

    With shared attention what responses have in common, the prompt first of all, is computed once; the vocabulary
    projection touches response positions only, in chunks, so (tokens × vocabulary) is never held. Everything that uses
    a parameter happens inside this forward, which is what wrappers such as FSDP's `fully_shard` need.
    """

    def __init__(
        self, model: PreTrainedModel, *, temperature: float = 1.0, chunk_tokens: int = 1024, bf16: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self._bf16 = bf16

    @property
    def hidden_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[1])

    def forward(self, packed: PackedTokens) -> Logprobs:
        with _autocast(self._bf16):
            if not uses_shared_prompt(self.model):
                return _padded_logprobs(self.model, packed, self._temperature)
            hidden_NH = _packed_hidden(self.model, packed)
            hidden_EH = hidden_NH.index_select(0, packed.predictor_E)
            head = self.model.get_output_embeddings()
            logprobs_E = target_logprobs(
                hidden_EH,
                head.weight,
                getattr(head, "bias", None),
                packed.target_E,
                self._temperature,
                self._chunk_tokens,
            )
        rows = zip(packed.prompt_index_GP, packed.prompt_lengths_G.tolist(), strict=True)
        prompts_GH = torch.stack([at_least_float32(hidden_NH.detach()[index[:n]]).mean(dim=0) for index, n in rows])
        return Logprobs(logprobs_E[packed.distinct_T], prompts_GH)


def _packed_hidden(model: PreTrainedModel, packed: PackedTokens) -> Tensor:
    """One row, no padding: the responses of a group attend to one computation of their prompt and common beginnings."""
    output = model.get_decoder()(
        input_ids=packed.tokens_N.unsqueeze(0),
        position_ids=packed.positions_N.unsqueeze(0),
        use_cache=False,
        layout=_layout(packed),
    )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _layout(packed: PackedTokens) -> PackedGroups:
    P = packed.prompt_index_GP.shape[1]
    prompt_seen_GP = torch.arange(P) < packed.prompt_lengths_G.unsqueeze(1)
    blocks = [
        _block(packed, rows_R, length, prompt_seen_GP)
        for rows_R, length in _blocks_of_similar_length(packed.inner_lengths_R, P)
    ]
    places = torch.cat([packed.prompt_index_GP.flatten(), *(block.index_RL.flatten() for block in blocks)]).numpy()
    row_index_N = np.empty(packed.num_tokens, dtype=np.int64)
    # Responses that share a token compute the same attention for it: any of them will do, here the first. Padding
    # points at position 0, whose own place is the first of all.
    row_index_N[places[::-1]] = np.arange(len(places))[::-1]
    return PackedGroups(packed.prompt_index_GP, blocks, torch.from_numpy(row_index_N))


def _block(packed: PackedTokens, rows_R: Tensor, length: int, prompt_seen_GP: Tensor) -> ResponseBlock:
    R, L, P = len(rows_R), length, prompt_seen_GP.shape[1]
    group_R = packed.group_R[rows_R]
    prompt_seen_RLP = prompt_seen_GP[group_R].unsqueeze(1).expand(R, L, P)
    own_seen_RLL = torch.ones(L, L, dtype=torch.bool).tril().expand(R, L, L)
    return ResponseBlock(
        packed.response_index_RL[rows_R, :L], group_R, torch.cat([prompt_seen_RLP, own_seen_RLL], dim=2)
    )


def _blocks_of_similar_length(lengths_R: Tensor, prompt_length: int) -> list[tuple[Tensor, int]]:
    """Rows by length, cut in halves while that saves attention more padding than another call costs."""

    def cut(rows_R: Tensor, lengths_R: Tensor) -> list[tuple[Tensor, int]]:
        half, longest = len(rows_R) // 2, int(lengths_R[-1])
        if half:
            shorter = int(lengths_R[half - 1])
            saved = half * (longest * (prompt_length + longest) - shorter * (prompt_length + shorter))
            if saved >= WORTH_A_BLOCK:
                return cut(rows_R[:half], lengths_R[:half]) + cut(rows_R[half:], lengths_R[half:])
        return [(rows_R, longest)] if longest else []

    lengths_R, rows_R = lengths_R.sort(stable=True)
    return cut(rows_R, lengths_R)


def _padded_logprobs(model: PreTrainedModel, packed: PackedTokens, temperature: float) -> Logprobs:
    """The plain forward: every response a row of its own, prompt included, padded to the longest.

    Right for any causal LM, since nothing but its own forward is used. Costs the prompt once per response.
    """
    lengths_G = packed.prompt_lengths_G.tolist()
    prompts = [packed.tokens_N[index[:n]] for index, n in zip(packed.prompt_index_GP, lengths_G, strict=True)]
    counts_R = torch.bincount(packed.response_T, minlength=packed.num_responses).tolist()
    target_T = packed.targets
    targets = target_T.split(counts_R)
    groups_R = packed.group_R.tolist()
    rows = [torch.cat([prompts[g], target[:-1]]) for g, target in zip(groups_R, targets, strict=True)]
    ids_RS = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    seen_RS = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    last: list[Tensor] = []  # the hidden states the head reads; asking the model for them would keep every layer's
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, inputs: last.append(inputs[0].detach()))
    try:
        logits_RSV = model(input_ids=ids_RS, attention_mask=seen_RS, use_cache=False).logits
    finally:
        hook.remove()
    spans = [(r, lengths_G[g] - 1, n) for r, (g, n) in enumerate(zip(groups_R, counts_R, strict=True))]
    logits_TV = torch.cat([logits_RSV[r, first : first + n] for r, first, n in spans])
    logprobs_TV = (at_least_float32(logits_TV) / temperature).log_softmax(dim=-1)
    first_rows = [groups_R.index(g) for g in range(len(lengths_G))]
    read = [last[0][r, :n] for r, n in zip(first_rows, lengths_G, strict=True)]
    prompt_GH = torch.stack([at_least_float32(hidden_PH).mean(dim=0) for hidden_PH in read])
    return Logprobs(logprobs_TV.gather(1, target_T.unsqueeze(1)).squeeze(1), prompt_GH)


def _autocast(bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()


class Reference:
    """The frozen model that the policy is held to: what it makes of given responses, with no gradient."""

    def __init__(self, policy: Policy, *, max_tokens: int) -> None:
        """`max_tokens` go through a forward pass at once."""
        self._policy = policy.requires_grad_(False)
        self._max_tokens = max_tokens

    @torch.inference_mode()
    def token_logprobs(self, answered: Sequence[Answered]) -> list[list[TokenLogprobs]]:
        """Per prompt and response, the log-probability of each of its tokens."""
        unique = [(prompt, *distinct(responses)) for prompt, responses in answered]
        computed = self._computed([(prompt, responses) for prompt, responses, _ in unique])
        return [[row[place] for place in places] for row, (_, _, places) in zip(computed, unique, strict=True)]

    def _computed(self, answered: Sequence[Answered]) -> list[list[TokenLogprobs]]:
        found: list[TokenLogprobs] = []
        for part in split_by_tokens(answered, self._max_tokens):
            values = self._policy(pack(part)).tokens_T.numpy()
            ends = np.cumsum([len(r) for _, responses in part for r in responses])
            found += np.split(values, ends[:-1])
        per_response = iter(found)  # a prompt's responses may have been in several parts
        return [[next(per_response) for _ in responses] for _, responses in answered]


def export_weights(model: PreTrainedModel) -> dict[str, NDArray[np.uint8]]:
    """Views of the trainable parameters as raw bytes by name; tied ones once."""
    return {name: _as_bytes(p) for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def import_weights(model: PreTrainedModel, tensors: Mapping[str, NDArray[np.uint8]]) -> None:
    """Copy published bytes into the model's own parameters. Names and sizes must agree exactly."""
    parameters = {name: p for name, p in model.named_parameters() if name in tensors}
    if parameters.keys() != tensors.keys():
        raise ValueError(f"published weights do not fit the model: {sorted(tensors.keys() ^ parameters.keys())[:3]}")
    for name, parameter in parameters.items():
        parameter.copy_(torch.from_numpy(tensors[name]).view(parameter.dtype).view(parameter.shape))


@torch.no_grad()
def copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a model the weights of another one of the same shape."""
    values = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        parameter.copy_(values[name])


def _as_bytes(parameter: nn.Parameter) -> NDArray[np.uint8]:
    flat = parameter.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy()
