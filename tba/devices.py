"""Where tensors live. The one border at which arrays become tensors: nothing else makes a tensor from an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CPU = torch.device("cpu")


def as_tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    """On the CPU it shares the array's memory."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
