"""Parameters and the paper's probabilities for head tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scanline.kernels.constants import MIXTURES
from scanline.model.heads import Head, split_mixture
from tests.conftest import tiny_config

ALL_VALUES = torch.arange(256)


def make_head(kind: str, channels: int) -> Head:
    return Head(tiny_config(head=kind, channels=channels)).double()


def random_parameters(config_outputs: int, rows: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, config_outputs, generator=generator, dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def bin_probability(value: int, mean: float, scale: float) -> float:
    """Compute eq. 2: σ((x + 0.5 - μ) / s) - σ((x - 0.5 - μ) / s), extended to ±∞ at 0 and 255.

    Values are scaled to [-1, 1], where half a bin is 1/255. The difference is computed on the side
    where both terms are small, to avoid cancellation.
    """
    x = value / 127.5 - 1
    upper = (x + 1 / 255 - mean) / scale
    lower = (x - 1 / 255 - mean) / scale
    if value == 0:
        return sigmoid(upper)
    if value == 255:
        return sigmoid(-lower)
    if lower > 0:
        return sigmoid(-lower) - sigmoid(-upper)
    return sigmoid(upper) - sigmoid(lower)


def distribution(head: Head, parameters: Tensor, earlier: list[int]) -> Tensor:
    """Return the head's P(earlier channels, last channel) for each value of the last one."""
    C = head.channels
    assert len(earlier) == C - 1
    values = torch.tensor(earlier, dtype=torch.long).repeat(256, 1)
    joint = torch.cat([values, ALL_VALUES.view(-1, 1)], 1)
    return torch.exp2(-head.bits(parameters.expand(256, -1), joint))


def marginal(parameters: Tensor, channels: int, earlier: list[int]) -> Tensor:
    """Return P(earlier channels, this one) for each value of this channel by eq. 1-3.

    Later channels are summed out: in each component they contribute exactly 1.
    """
    c, row = len(earlier), parameters[0].tolist()
    mixture = split_mixture(parameters, channels)
    weights = torch.softmax(mixture.weights[0], 0).tolist()
    result = []
    for value in range(256):
        values = [*earlier, value]
        total = 0.0
        for i in range(MIXTURES):
            product = weights[i]
            x = [v / 127.5 - 1 for v in values]
            for k in range(c + 1):
                mean = row[(1 + k) * MIXTURES + i]
                for other in range(k):
                    pair = k * (k - 1) // 2 + other
                    coefficient = row[(1 + 2 * channels + pair) * MIXTURES + i]
                    mean += math.tanh(coefficient) * x[other]
                scale = math.exp(max(row[(1 + channels + k) * MIXTURES + i], -7.0))
                product *= bin_probability(values[k], mean, scale)
            total += product
        result.append(total)
    return torch.tensor(result, dtype=torch.float64)
