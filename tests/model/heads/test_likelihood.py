"""Likelihood of the heads: equal to PixelCNN++, finite, and summing to 1."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from scanline.kernels.constants import MIXTURES
from scanline.model.heads import Head, logistic_log_prob
from tests.conftest import assert_close, tiny_config
from tests.model.heads.fixtures import (
    ALL_VALUES,
    bin_probability,
    distribution,
    make_head,
    marginal,
    random_parameters,
)


def paper_probability(parameters: list[float], values: list[int]) -> float:
    """Compute eq. 1-3, with the means shifted by eq. 3, one component at a time."""
    channels = len(values)

    def parameter(row: int, component: int) -> float:
        return parameters[row * MIXTURES + component]

    highest = max(parameter(0, i) for i in range(MIXTURES))
    weights = [math.exp(parameter(0, i) - highest) for i in range(MIXTURES)]
    total = 0.0
    for i in range(MIXTURES):
        means = [parameter(1 + c, i) for c in range(channels)]
        scales = [math.exp(max(parameter(1 + channels + c, i), -7.0)) for c in range(channels)]
        x = [value / 127.5 - 1 for value in values]
        if channels == 3:
            alpha, beta, gamma = (math.tanh(parameter(7 + p, i)) for p in range(3))
            means[1] += alpha * x[0]  # green depends on red
            means[2] += beta * x[0] + gamma * x[1]  # blue depends on red and green
        product = weights[i] / sum(weights)
        for value, mean, scale in zip(values, means, scales, strict=True):
            product *= bin_probability(value, mean, scale)
        total += product
    return total


@pytest.mark.parametrize("channels", [1, 3])
def test_mixture_likelihood_equals_pixelcnn_plus_plus(channels: int) -> None:
    head = make_head("logistic_mixture", channels)
    parameters = random_parameters(
        tiny_config(head="logistic_mixture", channels=channels).head_outputs, 60
    )
    parameters[20:40, MIXTURES * (1 + channels) : MIXTURES * (1 + 2 * channels)] -= 2  # narrow
    parameters[40:] *= 2
    generator = torch.Generator().manual_seed(5)
    values = torch.randint(0, 256, (60, channels), generator=generator)
    values[:3], values[20:23], values[3:6] = 0, 255, 255  # both edge bins
    bits = head.bits(parameters, values)
    expected = [
        -math.log2(paper_probability(p, v))
        for p, v in zip(parameters.tolist(), values.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        bits, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("log_scale", [-7.0, -5.0, -3.0, -1.0, 2.0])
@pytest.mark.parametrize("mean", [-1.5, -1.0, -0.3, 0.0, 0.9999, 1.3])
def test_bin_probabilities_of_one_logistic(mean: float, log_scale: float) -> None:
    values = ALL_VALUES.double() / 127.5 - 1
    here = torch.tensor(mean, dtype=torch.float64)
    got = logistic_log_prob(values, here, torch.full_like(here, log_scale)).exp()
    scale = math.exp(log_scale)
    expected = torch.tensor(
        [bin_probability(x, mean, scale) for x in range(256)], dtype=torch.float64
    )
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-300)


def test_rgb_probabilities_sum_to_the_marginals() -> None:
    """Summing over blue gives P(red, green), over green P(red), and over red 1."""
    head = make_head("logistic_mixture", 3)
    parameters = random_parameters(100, 1, seed=2)
    parameters[:, 40:70] -= 1.5
    for red, green in [(0, 0), (130, 90), (255, 3), (140, 255)]:
        over_blue = distribution(head, parameters, [red, green]).sum()
        expected = marginal(parameters, 3, [red])[green]
        torch.testing.assert_close(over_blue, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        marginal(parameters, 3, [130]).sum(), marginal(parameters, 3, [])[130], rtol=1e-9, atol=0
    )
    assert abs(float(marginal(parameters, 3, []).sum()) - 1) < 1e-9


def test_categorical_probabilities_are_the_softmax() -> None:
    parameters = random_parameters(256, 1)
    probabilities = distribution(make_head("categorical", 1), parameters, [])
    assert_close(probabilities, torch.softmax(parameters[0], 0))
    assert_close(probabilities.sum(), torch.tensor(1.0).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 3])
def test_extreme_parameters_have_finite_bits_and_gradients(
    channels: int, dtype: torch.dtype
) -> None:
    head = make_head("logistic_mixture", channels).to(dtype)
    rows = 1 + channels
    for log_scale, mean, value in itertools.product(
        (-200.0, -7.0, 0.0, 20.0, 60.0), (-50.0, -1.0, 0.0, 1.0, 50.0), (0, 1, 128, 254, 255)
    ):
        size = MIXTURES * (1 + 2 * channels + channels * (channels - 1) // 2)
        parameters = torch.zeros(1, size, dtype=dtype)
        parameters[:, MIXTURES : rows * MIXTURES] = mean
        parameters[:, rows * MIXTURES : (rows + channels) * MIXTURES] = log_scale
        parameters.requires_grad_()
        bits = head.bits(parameters, torch.full((1, channels), value))
        assert bits.isfinite().all(), (log_scale, mean, value)
        assert (bits >= -1e-4).all()
        (gradient,) = torch.autograd.grad(bits.sum(), parameters)
        assert gradient.isfinite().all(), (log_scale, mean, value)


@pytest.mark.parametrize("value", [0, 3, 128, 255])
def test_mixture_gradients_equal_finite_differences(value: int) -> None:
    head = make_head("logistic_mixture", 3)
    parameters = random_parameters(100, 2).requires_grad_()
    values = torch.tensor([[value, 80, 200], [80, value, 30]])
    assert torch.autograd.gradcheck(lambda p: head.bits(p, values), (parameters,))


def test_bits_are_at_least_float32() -> None:
    head = make_head("categorical", 1)
    half = torch.randn(4, 256).bfloat16()
    bits = head.bits(half, torch.zeros(4, 1, dtype=torch.uint8))
    assert bits.dtype == torch.float32
    assert torch.equal(bits, head.bits(half.float(), torch.zeros(4, 1, dtype=torch.uint8)))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spread", [0.3, 1.0, 2.0])
def test_mixture_in_float32_matches_float64(channels: int, spread: float) -> None:
    """Includes extreme values, and scales that are clamped."""
    config = tiny_config(channels=channels, head="logistic_mixture")
    parameters = spread * torch.randn(400, config.head_outputs)
    values = torch.randint(0, 256, (400, channels), dtype=torch.uint8)
    values[:40], values[40:80] = 0, 255
    scales = slice((1 + channels) * MIXTURES, (1 + 2 * channels) * MIXTURES)
    parameters[::4, scales] -= 4  # some below the minimum, where most bins are nearly empty
    assert_float32_matches_float64(Head(config), parameters, values)


def test_categorical_in_float32_matches_float64() -> None:
    parameters = 8 * torch.randn(70, 256)
    parameters[:9] *= 100  # some values have tiny probabilities
    values = torch.randint(0, 256, (70, 1), dtype=torch.uint8)
    assert_float32_matches_float64(Head(tiny_config()), parameters, values)


def assert_float32_matches_float64(head: Head, parameters: Tensor, values: Tensor) -> None:
    """Compare bits and gradients."""
    parameters.requires_grad_()
    exact = parameters.detach().double().requires_grad_()
    bits, expected = head.bits(parameters, values), head.bits(exact, values)
    assert_close(bits, expected)
    (grad,) = torch.autograd.grad(bits.sum(), parameters)
    (exactly,) = torch.autograd.grad(expected.sum(), exact)
    scale = exactly.abs().amax(1, keepdim=True)
    # The narrowest logistics multiply a mean's rounding error by e^7.
    torch.testing.assert_close((grad / scale).double(), exactly / scale, rtol=0, atol=2e-4)


@pytest.mark.parametrize("head", ["categorical", "logistic_mixture"])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_bits_of_invalid_parameters_are_not_finite(wrong: float, head: str) -> None:
    config = tiny_config(head=head)
    parameters = torch.zeros(3, config.head_outputs)
    parameters[1, 7] = wrong
    bits = Head(config).bits(parameters, torch.full((3, 1), 200, dtype=torch.uint8))
    assert bits.isfinite().tolist() == [True, False, True]
