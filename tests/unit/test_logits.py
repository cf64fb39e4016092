from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from tba.policy.logits import target_logprobs

Case = tuple[Tensor, Tensor, Tensor | None, Tensor]


def case(num_tokens: int, vocabulary: int, *, bias: bool, seed: int = 0, hidden: int = 6) -> Case:
    """Hidden states, head weight, bias and targets, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(num_tokens, hidden), (vocabulary, hidden), *[(vocabulary,)] * bias]
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    targets = torch.randint(0, vocabulary, (num_tokens,), generator=generator)
    first, second, *rest = [tensor.requires_grad_() for tensor in tensors]
    return first, second, rest[0] if rest else None, targets


def in_float32(inputs: Case) -> Case:
    hidden, weight, bias = (x.detach().float().requires_grad_() if x is not None else None for x in inputs[:3])
    assert hidden is not None
    assert weight is not None
    return hidden, weight, bias, inputs[3]


def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float) -> Tensor:
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits.float() if logits.dtype == torch.bfloat16 else logits
    return (logits / temperature).log_softmax(-1).gather(1, target.unsqueeze(1)).squeeze(1)


def gradients(values: Tensor, inputs: Case) -> list[Tensor]:
    wanted = [tensor for tensor in inputs[:3] if tensor is not None]
    return list(torch.autograd.grad((values * torch.linspace(-1, 2, len(values))).sum(), wanted))


@given(
    num_tokens=st.integers(1, 9),
    vocabulary=st.integers(2, 12),
    bias=st.booleans(),
    temperature=st.sampled_from([1.0, 0.3, 2.5]),
    chunk_tokens=st.integers(1, 10),
    seed=st.integers(0, 999),
)
@settings(max_examples=60, deadline=None)
def test_values_and_gradients_are_those_of_log_softmax(
    num_tokens: int, vocabulary: int, bias: bool, temperature: float, chunk_tokens: int, seed: int
) -> None:
    inputs = case(num_tokens, vocabulary, bias=bias, seed=seed)
    values = target_logprobs(*inputs, temperature, chunk_tokens)
    expected = plain(*inputs, temperature)
    assert_close(values, expected, rtol=1e-10, atol=1e-10)
    assert_close(gradients(values, inputs), gradients(expected, inputs), rtol=1e-10, atol=1e-10)


def test_float32_is_as_close_as_its_sums_are_long() -> None:
    """A sum of n terms is off by at most n · 2⁻²⁴ of their sizes, in whatever order it is made.

    Logits are sums of 64 terms whose sizes add up to some 64; the exponential makes the error of a logit a relative one
    of its probability, and so of the gradients.
    """
    exact_inputs = case(6, 500, bias=True, hidden=64)
    inputs = in_float32(exact_inputs)
    exact, values = plain(*exact_inputs, 0.7), target_logprobs(*inputs, 0.7, 4)
    assert values.dtype == torch.float32
    error = 64 * 64 * 2**-24
    assert (values - exact).abs().max() < error
    for found, wanted in zip(gradients(values, inputs), gradients(exact, exact_inputs), strict=True):
        assert (found - wanted).norm() < error * wanted.norm()


@pytest.mark.parametrize("bias", [False, True])
def test_the_backward_pass_is_the_derivative_of_the_forward_pass(bias: bool) -> None:
    """Against finite differences, which know no formula."""
    hidden, weight, bias_V, target = case(3, 5, bias=bias)
    inputs = (hidden, weight) if bias_V is None else (hidden, weight, bias_V)

    def function(*tensors: Tensor) -> Tensor:
        hidden, weight, *rest = tensors
        return target_logprobs(hidden, weight, rest[0] if rest else None, target, 0.8, 2)

    assert torch.autograd.gradcheck(function, inputs)


def test_chunks_change_nothing() -> None:
    inputs = case(10, 7, bias=True)
    whole = target_logprobs(*inputs, 0.7, 100)
    whole_gradients = gradients(whole, inputs)
    for chunk_tokens in (1, 3, 10):
        parts = target_logprobs(*inputs, 0.7, chunk_tokens)
        assert_close(parts, whole, rtol=1e-10, atol=1e-10)
        assert_close(gradients(parts, inputs), whole_gradients, rtol=1e-10, atol=1e-10)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, bias, target = case(4, 7, bias=True)
    assert bias is not None
    weight.requires_grad_(False)
    bias.requires_grad_(False)
    target_logprobs(hidden, weight, bias, target, 1.0, 2).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    assert bias.grad is None


@pytest.mark.parametrize("hidden_type", [torch.float32, torch.bfloat16])
def test_under_autocast_both_passes_see_the_same_logits(hidden_type: torch.dtype) -> None:
    """The backward pass runs when autocast is over. Were its logits others, probabilities would not sum to one."""
    hidden, weight, bias, target = in_float32(case(6, 500, bias=True, hidden=64))
    assert bias is not None
    hidden = hidden.detach().to(hidden_type).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        values = target_logprobs(hidden, weight, bias, target, 1.0, 4)
        rough = plain(hidden, weight, bias, target, 1.0)
    assert values.dtype == torch.float32
    # Six rows at once and four: another kernel may round a logit of up to 32 the other way in bfloat16.
    assert_close(values, rough, rtol=0, atol=32 * 2**-8)
    grad_hidden, grad_weight, grad_bias = torch.autograd.grad(values.sum(), (hidden, weight, bias))
    # onehot − softmax sums to zero over the vocabulary: but for the rounding of 6 × 500 exponentials, each of them off
    # by 2⁻²⁴ times the size of its logit, and of their sums. Of logits rounded otherwise it would be 2⁻⁹ times that.
    assert abs(float(grad_bias.sum())) < 6 * (32 + 500) * 2**-24
    expected = torch.autograd.grad(rough.sum(), (hidden, weight, bias))
    for found, wanted in zip((grad_hidden, grad_weight, grad_bias), expected, strict=True):
        assert found.dtype == wanted.dtype
        assert_close(found, wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))
