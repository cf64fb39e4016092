"""Leave unlikely tokens out of a distribution before a token is drawn from it: min-p, top-k and top-p.

They are applied in the order that vLLM has, each to what the one before has left. What is left is renormalised, and
the log-probability of a token that is drawn is the one it has there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

LIKELY = 1024
"""Tokens a nucleus is looked for among, before the whole vocabulary is put in order."""


@dataclass(frozen=True)
class Truncation:
    """Which tokens may be drawn. Tokens as likely as the last one that may be drawn may be drawn too."""

    top_p: float = 1.0
    """The likeliest tokens that together have this probability; 1: all."""
    top_k: int = 0
    """So many of the likeliest tokens; 0: all."""
    min_p: float = 0.0
    """Tokens that are at least this share as likely as the likeliest; 0: all."""

    @property
    def leaves_out(self) -> bool:
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0

    def apply(self, weight_RV: Tensor) -> None:
        """Probabilities of R rows to those of what is left, in place."""
        if self.min_p > 0:
            _keep(weight_RV, self.min_p * weight_RV.amax(dim=-1, keepdim=True))
        if 0 < self.top_k < weight_RV.shape[1]:
            _keep(weight_RV, weight_RV.topk(self.top_k).values[:, -1:])
        if self.top_p < 1:
            _keep(weight_RV, _least_of_nucleus(weight_RV, self.top_p))


ALL_TOKENS = Truncation()


def _least_of_nucleus(weight_RV: Tensor, top_p: float) -> Tensor:
    """The probability of the last token that belongs to it: tokens do as long as those before them fall short."""
    for count in (min(LIKELY, weight_RV.shape[1]), weight_RV.shape[1]):
        top_RC = weight_RV.topk(count).values
        mass_RC = top_RC.cumsum(dim=-1)
        if (mass_RC[:, -1:] >= top_p).all():
            break
    return top_RC.masked_fill(mass_RC - top_RC >= top_p, float("inf")).amin(dim=-1, keepdim=True)


def _keep(weight_RV: Tensor, least_R1: Tensor) -> None:
    weight_RV.masked_fill_(weight_RV < least_R1, 0.0)
    weight_RV.div_(weight_RV.sum(dim=-1, keepdim=True))
