"""The short convolution against the sum of its taps."""

from __future__ import annotations

import pytest
import torch

from scanline.kernels.short_conv import naive_short_conv, short_conv
from tests.conftest import assert_close


@pytest.mark.parametrize("shape", [(2, 5, 6, 8), (1, 1, 4, 3), (3, 2, 12, 1)])
def test_kernel_and_gradients_match_the_sum_of_taps(shape: tuple[int, int, int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, shape[-1], dtype=torch.float64, requires_grad=True)
    y, expected = short_conv(x, weight), naive_short_conv(x, weight)
    assert_close(y, expected)
    grad = torch.randn_like(y)
    mine = torch.autograd.grad(y, (x, weight), grad)
    theirs = torch.autograd.grad(expected, (x, weight), grad)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_double_backward_raises() -> None:
    x = torch.randn(1, 2, 3, 4, requires_grad=True)
    weight = torch.randn(5, 4, requires_grad=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        torch.autograd.grad(short_conv(x, weight).sum(), x, create_graph=True)


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
