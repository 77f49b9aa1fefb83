"""The short convolution against the sum of its taps."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from scanline.kernels.short_conv import short_conv
from tests.conftest import assert_close


def naive_short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the convolution position by position."""
    y = torch.zeros_like(x)
    R, C = x.shape[1:3]
    for r, c in itertools.product(range(R), range(C)):
        for w, (up, left) in zip(weight, ((0, 0), (0, 1), (1, 1), (1, 0), (1, -1)), strict=True):
            if r >= up and 0 <= c - left < C:
                y[:, r, c] += w * x[:, r - up, c - left]
    return y


@pytest.mark.parametrize("shape", [(2, 5, 6, 8), (1, 1, 4, 3), (3, 2, 12, 1)])
def test_convolution_equals_the_sum_of_taps(shape: tuple[int, int, int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64)
    weight = torch.randn(5, shape[-1], dtype=torch.float64)
    assert_close(short_conv(x, weight), naive_short_conv(x, weight))


def test_tap_positions() -> None:
    x = torch.arange(1, 13, dtype=torch.float64).view(1, 3, 4, 1)
    for tap, row in enumerate(([6], [5], [1], [2], [3])):  # the tap's value at row 1, column 1
        weight = torch.zeros(5, 1, dtype=torch.float64)
        weight[tap] = 1
        assert short_conv(x, weight)[0, 1, 1].tolist() == row
    everything = torch.ones(5, 1, dtype=torch.float64)
    corners = short_conv(x, everything)[0, :, :, 0]
    assert corners[0, 0] == 1  # nothing is left of or above the first position
    assert corners[1, 0] == 5 + 1 + 2
    assert corners[1, 3] == 8 + 7 + 3 + 4


@pytest.mark.parametrize(
    ("wrong", "x", "weight"),
    [
        ("x", (2, 3, 4), (5, 4)),
        ("weight", (1, 2, 3, 4), (4, 4)),
        ("columns", (1, 2, 1, 4), (5, 4)),
    ],
)
def test_invalid_shapes_raise(wrong: str, x: tuple[int, ...], weight: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"{wrong} must be"):
        short_conv(torch.zeros(x), torch.zeros(weight))
