from __future__ import annotations

import os

# Nothing in the tests may depend on a model hub; transformers reads this when it is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

# The tests' models are tiny: more threads only wait for each other.
torch.set_num_threads(1)
