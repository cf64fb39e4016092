"""Draw tokens from logits, several from a row where several responses share it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tba.engines.branches import Ints
from tba.engines.by_prompt import rank_among_equals
from tba.engines.truncation import ALL_TOKENS, Truncation
from tba.policy.devices import as_tensor
from tba.policy.precision import at_least_float32

Floats = NDArray[np.floating[Any]]


def draw_tokens(
    logits_RV: Tensor,
    row_A: Ints,
    temperature_A: Floats,
    uniform_A: Floats,
    truncation: Truncation = ALL_TOKENS,
) -> tuple[Ints, NDArray[np.float32]]:
    """A token for each entry of `row_A`, drawn from that row's softmax, and its log-probability. Uses the logits up.

    By inverting the cumulative distribution at these numbers of [0, 1): few passes over the vocabulary and no sort,
    however many draw from a row. A negative number asks for the likeliest token. All that draw from a row have the same
    temperature. `truncation` leaves unlikely tokens out first, and log-probabilities are those of what is left.
    """
    device = logits_RV.device
    logits_RV = at_least_float32(logits_RV).contiguous()
    _divide(logits_RV, row_A, temperature_A)
    weight_RV = logits_RV.softmax(dim=-1)
    truncation.apply(weight_RV)
    rows_A = as_tensor(row_A, device)
    greedy_A = uniform_A < 0
    # Of probabilities, which are rounded, several may be largest.
    likeliest_A = logits_RV.argmax(dim=-1)[rows_A] if greedy_A.any() else None
    if likeliest_A is not None and greedy_A.all():
        drawn_A = likeliest_A
    else:
        # The logits' place is free: at this size, new memory costs as much as the sum.
        drawn_A = _invert(torch.cumsum(weight_RV, dim=-1, out=logits_RV), as_tensor(uniform_A, device), row_A)
        if likeliest_A is not None:
            drawn_A = torch.where(as_tensor(greedy_A, device), likeliest_A, drawn_A)
    return drawn_A.cpu().numpy(), weight_RV[rows_A, drawn_A].log_().cpu().numpy()


def _divide(logits_RV: Tensor, row_A: Ints, temperature_A: Floats) -> None:
    if (temperature_A == temperature_A[0]).all():
        if temperature_A[0] != 1:
            logits_RV.div_(float(temperature_A[0]))
        return
    temperature_R = np.ones(len(logits_RV))
    temperature_R[row_A] = temperature_A
    logits_RV.div_(as_tensor(temperature_R, logits_RV.device).to(logits_RV.dtype).unsqueeze(1))


def _invert(cumulative_RV: Tensor, uniform_A: Tensor, row_A: Ints) -> Tensor:
    """The tokens at which the rows' cumulative weights pass these shares of their totals."""
    place_A, rows_A = (as_tensor(index, uniform_A.device) for index in (rank_among_equals(row_A), row_A))
    level_RC = cumulative_RV.new_zeros(len(cumulative_RV), int(place_A.max()) + 1)
    total_A = cumulative_RV[rows_A, -1]
    # A product that is rounded up to the total would ask for a token after the last that has any weight.
    below_A = torch.nextafter(total_A, torch.zeros_like(total_A))
    level_RC[rows_A, place_A] = (uniform_A * total_A).minimum(below_A)
    drawn_RC = torch.searchsorted(cumulative_RV, level_RC, right=True).clamp_(max=cumulative_RV.shape[1] - 1)
    return drawn_RC[rows_A, place_A]
