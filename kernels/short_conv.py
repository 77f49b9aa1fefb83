"""Causal depthwise 2-D convolution with five taps: itself, left, above left, above, above right.

    y[r, c] = w₀ x[r, c] + w₁ x[r, c-s] + w₂ x[r-1, c-s] + w₃ x[r-1, c] + w₄ x[r-1, c+s]

Values outside the image are 0. Each feature has its own weights. ``s`` is the number of columns per
pixel: 3 if red, green and blue are separate columns. Shapes: ``x, y: [B, R, C, D]``,
``weight: [5, D]``.

The implementation adds shifted slices, on a CPU one image row at a time, so that a row and the one
above stay in the cache. Working on whole images would read memory once per tap, and torch's grouped
convolution takes about 25 times as long. Layers with pre-norm fuse the convolution with the norm
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
    """Compute the convolution tap by tap over whole images, as the reference."""
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
    """Return the slices of rows to process at a time: single rows on a CPU, all rows on a GPU."""
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
    """Return the sum of products over all dimensions but the features: ``[D]``."""
    return (a * b).sum((0, 1, 2))


def check_conv(features: int, weight: Tensor, columns: int, stride: int) -> None:
    """Raise ``ValueError`` unless the weight and stride fit this number of features and columns."""
    if weight.shape != (TAPS, features):
        raise ValueError(f"weight must be [{TAPS}, {features}], not {[*weight.shape]}")
    if not 0 < stride < columns:
        raise ValueError(f"stride must be from 1 to {columns - 1} (columns - 1), not {stride}")


def short_conv(x: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """Convolve ``x: [B, R, C, D]`` with ``weight: [5, D]``, in the weight's float32 or float64.

    Gradients flow to both. Raises ``ValueError`` on wrong shapes.
    """
    if x.ndim != 4:
        raise ValueError(f"x must be [B, R, C, D], not {[*x.shape]}")
    check_conv(x.shape[3], weight, x.shape[2], stride)
    x = x.contiguous().to(weight.dtype)
    y: Tensor = _ShortConv.apply(x, weight, stride)
    return y


def convolve_steps(x: Tensor, weight: Tensor, columns: int, stride: int) -> Tensor:
    """Convolve the first S steps of images, ``x: [B, S, D]``, with ``columns`` steps per row."""
    B, S, D = x.shape
    missing = -S % columns  # steps missing in the last row
    padded = F.pad(x, (0, 0, 0, missing)) if missing else x  # padding by 0 would copy
    return short_conv(padded.view(B, -1, columns, D), weight, stride).view(B, -1, D)[:, :S]
