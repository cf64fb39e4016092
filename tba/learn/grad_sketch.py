"""How alike the gradients of consecutive steps are: their cosine, estimated from a fixed random choice of coordinates.

To compare whole gradients, one would have to be kept: as much memory as the model takes. The cosine over 16,384
coordinates that are chosen once, each parameter as likely as any other, takes 64 KB and differs from that of the whole
by about 1/√16,384 = .008 (one standard error, if no few coordinates dominate). A smaller model is taken whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from tba.policy.devices import as_tensor

NUM_COORDINATES = 16_384
_SEED = 0  # the choice is the same in every run and process; nothing else is drawn from it


class GradSketch:
    """Of the gradients that lie in `.grad` of these parameters."""

    def __init__(self, parameters: Sequence[nn.Parameter], num_coordinates: int = NUM_COORDINATES) -> None:
        self._chosen = _choose(parameters, num_coordinates)
        self._last: Tensor | None = None

    @torch.no_grad()
    def cosine(self) -> float | None:
        """Between the gradient as it is now and that of the last call. None at the first call, and where one of the
        two is zero or not finite."""
        values = [
            parameter.grad.flatten()[index] if parameter.grad is not None else parameter.new_zeros(len(index))
            for parameter, index in self._chosen
        ]
        now = torch.cat([value.float() for value in values]).cpu()
        last, self._last = self._last, now if bool(now.isfinite().all()) else None
        if last is None or self._last is None:
            return None
        one, other = last.double(), now.double()
        size = float(one.norm() * other.norm())
        return float(one @ other) / size if size > 0 else None

    @property
    def last(self) -> Tensor | None:
        """What the next gradient will be compared with: part of a checkpoint."""
        return self._last

    def restore(self, last: Tensor | None) -> None:
        """Compare the next gradient with this one, unless it is of other coordinates: of another version of tba."""
        size = sum(len(index) for _, index in self._chosen)
        self._last = last if last is not None and len(last) == size else None


def _choose(parameters: Sequence[nn.Parameter], count: int) -> list[tuple[nn.Parameter, Tensor]]:
    """Coordinates of all parameters laid end to end, each as likely, as places within the parameters."""
    ends = np.cumsum([parameter.numel() for parameter in parameters])
    total = int(ends[-1]) if len(ends) else 0
    if total <= count:
        chosen = np.arange(total)
    else:
        chosen = np.unique(np.random.default_rng(_SEED).integers(0, total, count))
    starts = ends - [parameter.numel() for parameter in parameters]
    within = [chosen[(chosen >= start) & (chosen < end)] - start for start, end in zip(starts, ends, strict=True)]
    return [
        (parameter, as_tensor(index, parameter.device))
        for parameter, index in zip(parameters, within, strict=True)
        if len(index)
    ]
