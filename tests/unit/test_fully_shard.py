"""FSDP2's `fully_shard` on a Policy, on one gloo rank: the same log-probabilities and gradients."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
sys.path.insert(0, "tests/unit")
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing import assert_close
from float64 import in_float64, to_float64
from tiny_models import ARCHITECTURES, answered, build
from tba.policy.batch import pack
from tba.policy.policy import Policy

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
packed = pack(answered([(5, [3, 8, 1]), (2, [6, 6])]))

def run(sharded):
    with in_float64():
        policy = Policy(to_float64(build(ARCHITECTURES[{name!r}], shared={shared})), temperature=0.7, chunk_tokens=3)
        if sharded:
            for layer in policy.model.get_decoder().layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(policy, mesh=mesh)
            assert all(type(p).__name__ == "DTensor" for p in policy.parameters())
        logprobs = policy(packed)
        (logprobs.tokens_T * torch.linspace(-1, 1, len(logprobs.tokens_T))).sum().backward()
    full = lambda x: x.full_tensor() if hasattr(x, "full_tensor") else x
    return logprobs, {{name: full(p.grad) for name, p in policy.named_parameters() if p.grad is not None}}

(plain, plain_gradients), (sharded, sharded_gradients) = run(False), run(True)
assert_close(sharded.tokens_T, plain.tokens_T, rtol=1e-10, atol=1e-10)
assert_close(sharded.prompt_GH, plain.prompt_GH, rtol=1e-10, atol=1e-10)
assert_close(sharded_gradients, plain_gradients, rtol=1e-10, atol=1e-10)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("name", "shared"), [("llama", True), ("llama, tied", True), ("llama, tied", False)], ids=lambda part: str(part)
)
def test_a_sharded_policy_computes_the_same(name: str, shared: bool) -> None:
    done = subprocess.run([sys.executable, "-c", CODE.format(name=name, shared=shared)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
