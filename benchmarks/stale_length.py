"""How much of their push stale negatives lose, by the length of a response: `python -m benchmarks stale_length`.

No model is run and no time is taken. Synthetic wrong answers have the same distribution of drift per token at every
length. For each weight, and for each way to count the drift of a whole response, the share of the push that is removed
is measured. The ratio is that of the longest responses to those of 40 tokens; at 1 length does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from benchmarks.report import Row
from tba.objectives.stale_negatives import FLOOR, THRESHOLD, How, drift_per_token, stale_weights

if TYPE_CHECKING:
    from torch import Tensor

LENGTHS = (3, 40, 160, 640)
SHORT, LONG = LENGTHS[1], LENGTHS[-1]
MEAN, SPREAD, TOKEN_SPREAD = -0.012, 0.012, 0.04
"""Drift in nats per token: of responses, the spread between responses, and that between the tokens of one."""
DEFAULT_FORM = f"mean over at least {FLOOR} tokens"
FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda drift, length: drift_per_token(drift, length, "sum"),
    "mean": lambda drift, length: drift_per_token(drift, length, floor=1),
    DEFAULT_FORM: drift_per_token,
}
LOWEST, HIGHEST = 0.8, 1.25
"""Between these the ratio of the default should be: the noise of single tokens averages out over long responses, which
moves responses across a threshold."""


def run(full: bool) -> list[Row]:
    """The shares are exact to about a hundredth, and the same in every run."""
    hows: tuple[How, ...] = ("taper", "mask")
    return [_row(how, form, 100_000 if full else 10_000) for how in hows for form in FORMS]


def _row(how: How, form: str, count: int) -> Row:
    removed = {length: share_removed(how, form, length, count) for length in LENGTHS}
    ratio = removed[LONG] / removed[SHORT]
    is_default = form == DEFAULT_FORM
    return Row(
        name=f"share of push removed, {how}, {form}",
        ours=f"{removed[LONG]:.2f} at {LONG} tokens",
        other=f"{removed[SHORT]:.2f} at {SHORT} tokens",
        ratio=ratio,
        spread="",
        target=f"{LOWEST} to {HIGHEST}" if is_default else "",
        met=LOWEST <= ratio <= HIGHEST if is_default else None,
        measured=", ".join(f"{share:.2f} at {length}" for length, share in removed.items()),
    )


def share_removed(how: How, form: str, length: int, count: int) -> float:
    """Mean of 1 − w over so many wrong answers of this length."""
    import torch

    generator = torch.Generator().manual_seed(0)
    of_response, of_tokens = torch.randn(2, 1, count, generator=generator, dtype=torch.float64)
    drift = length * (MEAN + SPREAD * of_response) + length**0.5 * TOKEN_SPREAD * of_tokens
    per_token = FORMS[form](drift, torch.full((1, count), length))
    return float((1 - stale_weights(-torch.ones_like(drift), per_token, how, THRESHOLD)).mean())
