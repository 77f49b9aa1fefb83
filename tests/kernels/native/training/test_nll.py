"""Negative log-likelihoods in C++ against their definitions in float64."""

from __future__ import annotations

import pytest
import torch

from scanline.kernels.constants import MIXTURES
from scanline.model.heads import Head
from tests.conftest import assert_close, tiny_config


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_mixture_bits_and_gradients_match_the_definition(
    channels: int, spread: float, isa: str
) -> None:
    """Includes extreme values, and scales that are clamped."""
    config = tiny_config(channels=channels, head="logistic_mixture")
    head = Head(config)
    parameters = spread * torch.randn(400, config.head_outputs)
    values = torch.randint(0, 256, (400, channels), dtype=torch.uint8)
    values[:40], values[40:80] = 0, 255
    scales = slice((1 + channels) * MIXTURES, (1 + 2 * channels) * MIXTURES)
    parameters[::4, scales] -= 4  # some below the minimum, where most bins are nearly empty
    parameters.requires_grad_()
    exact = parameters.detach().double().requires_grad_()
    bits, expected = head.bits(parameters, values), head.bits(exact, values)
    assert_close(bits, expected)
    (grad,) = torch.autograd.grad(bits.sum(), parameters)
    (exactly,) = torch.autograd.grad(expected.sum(), exact)
    scale = exactly.abs().amax(1, keepdim=True)
    assert_close(grad / scale, exactly / scale, torch.float32)


def test_categorical_bits_and_gradients_match_the_definition(isa: str) -> None:
    head = Head(tiny_config())
    parameters = 8 * torch.randn(70, 256)
    parameters[:9] *= 100  # some values have tiny probabilities
    values = torch.randint(0, 256, (70, 1), dtype=torch.uint8)
    parameters.requires_grad_()
    exact = parameters.detach().double().requires_grad_()
    bits, expected = head.bits(parameters, values), head.bits(exact, values)
    assert_close(bits, expected)
    weights = torch.randn(70)
    (grad,) = torch.autograd.grad((bits * weights).sum(), parameters)
    (exactly,) = torch.autograd.grad((expected * weights.double()).sum(), exact)
    assert_close(grad, exactly, torch.float32)


@pytest.mark.parametrize("head", ["categorical", "logistic_mixture"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_bits_of_invalid_parameters_are_not_finite(wrong: float, head: str, isa: str) -> None:
    config = tiny_config(head=head)
    parameters = torch.zeros(3, config.head_outputs)
    parameters[1, 7] = wrong
    bits = Head(config).bits(parameters, torch.full((3, 1), 200, dtype=torch.uint8))
    assert bits.isfinite().tolist() == [True, False, True]
