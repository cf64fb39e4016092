"""Log-probabilities of target tokens from hidden states, without ever holding (tokens × vocabulary)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tba.policy.precision import at_least_float32


def target_logprobs(
    hidden_TH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, target_T: Tensor, temperature: float, chunk_tokens: int
) -> Tensor:
    """log softmax(hidden · weightᵀ / temperature) at the targets, in chunks of tokens, in float32 at least."""
    result: Tensor = _TargetLogprobs.apply(hidden_TH, weight_VH, bias_V, target_T, temperature, chunk_tokens)  # type: ignore[no-untyped-call]
    return result


def _logits(hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, temperature: float) -> Tensor:
    logits_CV = at_least_float32(torch.nn.functional.linear(hidden_CH, weight_VH, bias_V))
    return logits_CV.div_(temperature) if temperature != 1.0 else logits_CV


def _logsumexp_(logits_CV: Tensor) -> Tensor:
    """Over the vocabulary, in the memory of the logits: they are gone afterwards."""
    largest_C1 = logits_CV.amax(dim=-1, keepdim=True)
    return logits_CV.sub_(largest_C1).exp_().sum(dim=-1).log_().add_(largest_C1.squeeze(1))


def _product_dtype(hidden_TH: Tensor) -> torch.dtype:
    device = hidden_TH.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden_TH.dtype


def _cast(dtype: torch.dtype, *tensors: Tensor | None) -> tuple[Any, ...]:
    return tuple(tensor.to(dtype) if tensor is not None else None for tensor in tensors)


class _TargetLogprobs(torch.autograd.Function):
    """Keeps one number a token between the passes; the logits of a chunk are computed again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        target_T: Tensor,
        temperature: float,
        chunk_tokens: int,
    ) -> Tensor:
        # Autocast is over when the backward pass runs; its logits must be the very same, so the type is kept.
        ctx.dtype = _product_dtype(hidden_TH)
        hidden, weight, bias = _cast(ctx.dtype, hidden_TH, weight_VH, bias_V)
        logprobs, normalisers = [], []
        for hidden_CH, target_C in zip(hidden.split(chunk_tokens), target_T.split(chunk_tokens), strict=True):
            logits_CV = _logits(hidden_CH, weight, bias, temperature)
            chosen_C = logits_CV.gather(1, target_C.unsqueeze(1)).squeeze(1)
            normaliser_C = _logsumexp_(logits_CV)
            logprobs.append(chosen_C - normaliser_C)
            normalisers.append(normaliser_C)
            del logits_CV  # before the next chunk's are made
        ctx.save_for_backward(hidden_TH, weight_VH, bias_V, target_T, torch.cat(normalisers))
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        return torch.cat(logprobs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight_VH, bias_V, target_T, normaliser_T = ctx.saved_tensors
        hidden, weight, bias = _cast(ctx.dtype, hidden_TH, weight_VH, bias_V)
        grad_hidden = torch.empty_like(hidden_TH)
        grad_weight = torch.zeros_like(weight_VH) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias_V) if bias_V is not None and ctx.needs_input_grad[2] else None
        for start in range(0, len(target_T), ctx.chunk_tokens):
            chunk = slice(start, start + ctx.chunk_tokens)
            hidden_CH = hidden[chunk]
            grad_C1 = grad_outputs[0][chunk].unsqueeze(1) / ctx.temperature
            logits_CV = _logits(hidden_CH, weight, bias, ctx.temperature)
            # d logprob / d logits = onehot(target) - softmax(logits)
            grad_CV = logits_CV.sub_(normaliser_T[chunk].unsqueeze(1)).exp_().mul_(-grad_C1)
            grad_CV.scatter_add_(1, target_T[chunk].unsqueeze(1), grad_C1)
            if grad_bias is not None:
                grad_bias.add_(grad_CV.sum(0))
            grad_CV = grad_CV.to(ctx.dtype)
            grad_hidden[chunk] = grad_CV @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad_CV.T, hidden_CH)
            del logits_CV, grad_CV  # before the next chunk's are made
        return grad_hidden, grad_weight, grad_bias, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Without a copy as large as the total, unless the product has another precision."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
