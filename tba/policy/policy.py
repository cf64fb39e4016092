"""Load models, and the log-probability of responses under them.

`Policy` is the only place where log-probabilities are computed, for the policy and for the reference alike, so a
difference of kernels cannot pose as a difference of models. Generation is not here (`engines/`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from tba.policy.attention import SHARED_PROMPT, supports_shared_prompt
from tba.policy.batch import Answered, PackedTokens, distinct, pack, split_by_tokens
from tba.policy.devices import CPU, as_tensor
from tba.policy.loading import load_weights, told_in_one_line
from tba.policy.logits import target_logprobs
from tba.policy.names import model_directory, read_chat_template
from tba.policy.precision import at_least_float32
from tba.policy.recompute import recomputing
from tba.types import TbaError, TokenLogprobs

transformers_logging.disable_progress_bar()


def load_model(
    path: str,
    *,
    attention: str = "auto",
    trust_remote_code: bool = False,
    setting: str = "model",
    dtype: str = "float32",
) -> PreTrainedModel:
    """A causal LM on the CPU, in evaluation mode (no dropout: trajectory balance needs one density).

    TbaError if any of its weights is not in its files: each process would make up its own.
    """
    source, what = model_directory(path), f"{setting} {path!r}"
    with told_in_one_line(f"{what} cannot be loaded"):
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        model = load_weights(
            *(AutoModelForCausalLM, source, what),
            dtype=getattr(torch, dtype),
            config=config,
            trust_remote_code=trust_remote_code,
        )
    if getattr(model, "_is_stateful", False):
        raise TbaError(f"model {path!r} ({type(model).__name__}) keeps recurrent state, which no engine here supports")
    shared = supports_shared_prompt(type(model), config)
    if attention == "shared" and not shared:
        raise TbaError(f"model.attention = 'shared' does not fit {type(model).__name__}: use 'padded' or 'auto'")
    if attention != "padded" and shared:
        model.set_attn_implementation(SHARED_PROMPT)
    return model


def load_tokenizer(
    path: str, *, trust_remote_code: bool = False, chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; with the chat template in this file, if one is named."""
    with told_in_one_line(f"no tokenizer for model {path!r}"):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            model_directory(path), trust_remote_code=trust_remote_code
        )
    if chat_template is not None:
        tokenizer.chat_template = read_chat_template(chat_template)
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
    def device(self) -> torch.device:
        return self.model.device

    @property
    def hidden_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[1])

    def forward(self, packed: PackedTokens) -> Logprobs:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self._bf16):
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
        prompts = [hidden_NH.detach()[place] for place in packed.prompts_at]
        return Logprobs(logprobs_E[packed.distinct_T], _means(prompts))


def _packed_hidden(model: PreTrainedModel, packed: PackedTokens) -> Tensor:
    """One row, no padding: the responses of a group attend to one computation of their prompt and common beginnings."""
    with recomputing(model, packed.num_tokens):
        output = model.get_decoder()(
            input_ids=packed.tokens_N.unsqueeze(0),
            position_ids=packed.positions_N.unsqueeze(0),
            use_cache=False,
            layout=packed.layout,
        )
    hidden: Tensor = output.last_hidden_state[0]
    return hidden


def _padded_logprobs(model: PreTrainedModel, packed: PackedTokens, temperature: float) -> Logprobs:
    """The plain forward: every response a row of its own, prompt included, padded to the longest.

    Right for any causal LM, since nothing but its own forward is used. Costs the prompt once per response.
    """
    rows = [(len(p.tokens), np.array([*p.tokens, *r.tokens[:-1]])) for p, rs in packed.answered for r in rs]
    shape = (len(rows), max(len(row) for _, row in rows))
    ids_RS, seen_RS = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for r, (_, row) in enumerate(rows):
        ids_RS[r, : len(row)], seen_RS[r, : len(row)] = row, 1
    last: list[Tensor] = []  # the hidden states the head reads; asking the model for them would keep every layer's
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, inputs: last.append(inputs[0].detach()))
    device = model.device
    ids, seen = as_tensor(ids_RS, device), as_tensor(seen_RS, device)
    try:
        with recomputing(model, ids_RS.size):
            output = model(input_ids=ids, attention_mask=seen, use_cache=False)
    finally:
        hook.remove()
    logits = [output.logits[r, start - 1 : len(row)] for r, (start, row) in enumerate(rows)]
    logits_TV = torch.cat(logits)[as_tensor(np.concatenate([r.written for r in packed.responses]), device)]
    logprobs_TV = (at_least_float32(logits_TV) / temperature).log_softmax(dim=-1)
    firsts = np.cumsum([0, *(len(responses) for _, responses in packed.answered)])[:-1]
    prompts = [last[0][r, : rows[r][0]] for r in firsts.tolist()]
    return Logprobs(logprobs_TV.gather(1, packed.targets.unsqueeze(1)).squeeze(1), _means(prompts))


def _means(prompts: Sequence[Tensor]) -> Tensor:
    """Of each prompt's hidden states, to (G, H)."""
    return torch.stack([at_least_float32(hidden_PH).mean(dim=0) for hidden_PH in prompts])


class Reference:
    """The frozen model that the policy is held to: what it makes of given responses, with no gradient."""

    def __init__(
        self,
        policy: Policy,
        *,
        max_tokens: int,
        as_reference: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`max_tokens` go through a forward pass at once. `as_reference` makes the model the reference for the time of
        its context, if others use it too: the policy with its adapters switched off."""
        self._policy = policy
        self._max_tokens = max_tokens
        self._as_reference = as_reference

    @torch.inference_mode()
    def token_logprobs(self, answered: Sequence[Answered]) -> list[list[TokenLogprobs]]:
        """Per prompt and response, the log-probability of each of its tokens; 0 where the policy did not write it."""
        unique = [(prompt, *distinct(responses)) for prompt, responses in answered]
        with self._as_reference():
            computed = self._computed([(prompt, responses) for prompt, responses, _ in unique])
        return [[row[place] for place in places] for row, (_, _, places) in zip(computed, unique, strict=True)]

    def _computed(self, answered: Sequence[Answered]) -> list[list[TokenLogprobs]]:
        found: list[TokenLogprobs] = []
        for part in split_by_tokens(answered, self._max_tokens):
            packed = pack(part, self._policy.device)
            written = np.concatenate([response.written for response in packed.responses])
            own = self._policy(packed).tokens_T.cpu().numpy()
            values = np.zeros(len(written), own.dtype)
            values[written] = own
            ends = np.cumsum([len(response) for response in packed.responses])
            found += np.split(values, ends[:-1])
        per_response = iter(found)  # a prompt's responses may have been in several parts
        return [[next(per_response) for _ in responses] for _, responses in answered]


def export_weights(model: PreTrainedModel) -> dict[str, NDArray[np.uint8]]:
    """Views of the trainable parameters as raw bytes by name; tied ones once."""
    return {name: _as_bytes(p) for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def import_weights(model: PreTrainedModel, tensors: Mapping[str, NDArray[np.uint8]]) -> None:
    """Copy published bytes into the model's own parameters, wherever they are and of whatever type. Names and shapes
    must agree exactly."""
    parameters = {name: p for name, p in model.named_parameters() if name in tensors}
    if parameters.keys() != tensors.keys():
        raise ValueError(f"published weights do not fit the model: {sorted(tensors.keys() ^ parameters.keys())[:3]}")
    for name, parameter in parameters.items():
        parameter.copy_(_published(tensors[name], parameter))


@torch.no_grad()
def copy_weights(source: PreTrainedModel, target: PreTrainedModel) -> None:
    """Give a model the weights of another one of the same shape."""
    values = dict(source.named_parameters())
    for name, parameter in target.named_parameters():
        parameter.copy_(values[name])


def _published(raw: NDArray[np.uint8], parameter: nn.Parameter) -> Tensor:
    """A Learner publishes float32, though its reader may keep bfloat16; float64 where identities are tested."""
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    return as_tensor(raw, CPU).view(dtype).view(parameter.shape)


def _as_bytes(parameter: nn.Parameter) -> NDArray[np.uint8]:
    flat = parameter.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy()
