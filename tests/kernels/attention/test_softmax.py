"""Softmax attention: the fused and one-step forms against the formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scanline.kernels.attention.softmax import (
    naive_softmax_attention,
    softmax_attention,
    softmax_attention_step,
)
from tests.conftest import assert_close


def qkv(B: int, T: int, H: int, K: int, V: int) -> tuple[Tensor, Tensor, Tensor]:
    q, k = torch.randn(2, B, T, H, K, dtype=torch.float64)
    return q, k, torch.randn(B, T, H, V, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(2, 33, 3, 8, 8), (1, 1, 1, 4, 4), (3, 7, 2, 4, 6)], ids=str)
def test_kernel_and_gradients_match_the_formula(
    shape: tuple[int, int, int, int, int],
) -> None:
    inputs = [x.requires_grad_() for x in qkv(*shape)]
    o, expected = softmax_attention(*inputs), naive_softmax_attention(*inputs)
    assert_close(o, expected)
    grad = torch.randn_like(o)
    mine = torch.autograd.grad(o, inputs, grad)
    theirs = torch.autograd.grad(expected, inputs, grad)
    for one, other in zip(mine, theirs, strict=True):
        assert_close(one, other)


def test_formula_of_an_example() -> None:
    q, k, v = qkv(1, 3, 1, 4, 1)
    o = naive_softmax_attention(q, k, v)[0, :, 0, 0].tolist()
    queries, keys, values = q[0, :, 0].tolist(), k[0, :, 0].tolist(), v[0, :, 0, 0].tolist()
    for j in range(3):
        weights = [
            math.exp(sum(a * b for a, b in zip(queries[j], keys[i], strict=True)) / 2)
            for i in range(j + 1)
        ]
        total = sum(w * x for w, x in zip(weights, values, strict=False))
        assert o[j] == pytest.approx(total / sum(weights))


def test_step_with_rows_at_different_positions() -> None:
    q, k, v = qkv(4, 9, 2, 5, 3)
    positions = torch.tensor([0, 8, 3, 4])
    rows = torch.arange(4)
    o = softmax_attention_step(q[rows, positions], k.transpose(1, 2), v.transpose(1, 2), positions)
    assert_close(o, naive_softmax_attention(q, k, v)[rows, positions])


@pytest.mark.parametrize("form", [softmax_attention, naive_softmax_attention])
def test_invalid_shapes_raise(form: object) -> None:
    assert callable(form)
    q, k, v = qkv(2, 5, 2, 4, 4)
    with pytest.raises(ValueError, match="q and k must both be"):
        form(q, k[:, 1:], v)
    with pytest.raises(ValueError, match="v must be"):
        form(q, k, v[:, 1:])
