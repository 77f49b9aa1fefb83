"""A causal depthwise 2-D convolution of five taps: itself, left, above left, above, above right.

    y[r, c] = w₀ x[r, c] + w₁ x[r, c-s] + w₂ x[r-1, c-s] + w₃ x[r-1, c] + w₄ x[r-1, c+s]

with 0 outside, a weight a feature, and ``s`` the columns that make a pixel (3 where red, green and
blue are columns of their own). Shapes: ``x, y: [B, R, C, D]``, ``weight: [5, D]``.

It is written as added slices, on a CPU a row of the image at a time: a row and the one above stay
in the cache, where whole images would be read from memory once a tap, and torch's grouped
convolution takes some 25 times as long. Layers with pre-norm have it in one pass with their norm
(``kernels/ops/residual.py``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from scanline.kernels.double_backward import refuse_double_backward

TAPS = 5


def naive_short_conv(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Compute the convolution as written, tap by tap over whole images: the oracle."""
    left = torch.zeros_like(x)
    left[:, :, stride:] = x[:, :, :-stride]
    right = torch.zeros_like(x)
    right[:, :, :-stride] = x[:, :, stride:]
    taps = [x, left]
    for shifted in (left, x, right):
        above = torch.zeros_like(x)
        above[:, 1:] = shifted[:, :-1]
        taps.append(above)
    return sum((w * tap for w, tap in zip(weight, taps, strict=True)), torch.zeros_like(x))


def _bands(x: Tensor) -> list[slice]:
    """Give the rows to work on at a time: one where a cache is to hold them, all on a device."""
    R = x.shape[1]
    return [slice(0, R)] if x.is_cuda else [slice(r, r + 1) for r in range(R)]


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = s = stride
        y = torch.empty_like(x)
        for band in _bands(x):
            here, out = x[:, band], y[:, band]
            torch.mul(here, weight[0], out=out)
            out[:, :, s:].addcmul_(here[:, :, :-s], weight[1])
            first = max(band.start, 1)
            above, out = x[:, first - 1 : band.stop - 1], y[:, first : band.stop]
            if above.shape[1]:
                out[:, :, s:].addcmul_(above[:, :, :-s], weight[2])
                out.addcmul_(above, weight[3])
                out[:, :, :-s].addcmul_(above[:, :, s:], weight[4])
        return y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        s = ctx.stride
        grad = grad.contiguous()
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        R = x.shape[1]
        for band in _bands(x):
            here, g, out = x[:, band], grad[:, band], grad_x[:, band]
            torch.mul(g, weight[0], out=out)
            out[:, :, :-s].addcmul_(g[:, :, s:], weight[1])
            grad_weight[0] += _dot(g, here)
            grad_weight[1] += _dot(g[:, :, s:], here[:, :, :-s])
            below = grad[:, band.start + 1 : band.stop + 1]
            rows = slice(band.start, min(band.stop, R - 1))
            out, here = grad_x[:, rows], x[:, rows]
            if below.shape[1]:
                out[:, :, :-s].addcmul_(below[:, :, s:], weight[2])
                out.addcmul_(below, weight[3])
                out[:, :, s:].addcmul_(below[:, :, :-s], weight[4])
                grad_weight[2] += _dot(below[:, :, s:], here[:, :, :-s])
                grad_weight[3] += _dot(below, here)
                grad_weight[4] += _dot(below[:, :, :-s], here[:, :, s:])
        return grad_x, grad_weight, None


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum the products over all but the features: ``[D]``."""
    return (a * b).sum((0, 1, 2))


def check_conv(features: int, weight: Tensor, columns: int, stride: int) -> None:
    """Raise ``ValueError`` where a convolution does not fit so many features and columns."""
    if weight.shape != (TAPS, features):
        raise ValueError(f"weight must be [{TAPS}, {features}], not {[*weight.shape]}")
    if not 0 < stride < columns:
        raise ValueError(f"stride must be 1 to {columns - 1}, the columns less one: {stride}")


def short_conv(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Convolve ``x: [B, R, C, D]`` with ``weight: [5, D]``, in float32 or float64.

    Gradients flow to both. Raises ``ValueError`` on shapes that do not fit.
    """
    if x.ndim != 4:
        raise ValueError(f"x must be [B, R, C, D], not {[*x.shape]}")
    check_conv(x.shape[3], weight, x.shape[2], stride)
    x = x.contiguous().to(weight.dtype)
    y: Tensor = _ShortConv.apply(x, weight, stride)
    return y


def convolve_steps(x: Tensor, weight: Tensor, columns: int, stride: int) -> Tensor:
    """Convolve an image's first steps, ``x: [B, S, D]``, in rows of ``columns`` of them."""
    B, S, D = x.shape
    missing = -S % columns  # to whole rows of the image
    whole = F.pad(x, (0, 0, 0, missing)) if missing else x  # which would be copied
    return short_conv(whole.view(B, -1, columns, D), weight, stride).view(B, -1, D)[:, :S]
