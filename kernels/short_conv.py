"""Causal depthwise 2-D convolution with five taps: itself, left, above left, above, above right.

    y[r, c] = w₀ x[r, c] + w₁ x[r, c-1] + w₂ x[r-1, c-1] + w₃ x[r-1, c] + w₄ x[r-1, c+1]

Values outside the image are 0. Each feature has its own weights. Shapes: ``x, y: [B, R, C, D]``,
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


def naive_short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Compute the convolution tap by tap over whole images, as the reference."""
    left = torch.zeros_like(x)
    left[:, :, 1:] = x[:, :, :-1]
    right = torch.zeros_like(x)
    right[:, :, :-1] = x[:, :, 1:]
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
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = torch.empty_like(x)
        for band in _bands(x):
            here, out = x[:, band], y[:, band]
            torch.mul(here, weight[0], out=out)
            out[:, :, 1:].addcmul_(here[:, :, :-1], weight[1])
            first = max(band.start, 1)
            above, out = x[:, first - 1 : band.stop - 1], y[:, first : band.stop]
            if above.shape[1]:
                out[:, :, 1:].addcmul_(above[:, :, :-1], weight[2])
                out.addcmul_(above, weight[3])
                out[:, :, :-1].addcmul_(above[:, :, 1:], weight[4])
        return y

    @staticmethod
    @refuse_double_backward
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x, grad_weight = torch.empty_like(x), torch.zeros_like(weight)
        R = x.shape[1]
        for band in _bands(x):
            here, g, out = x[:, band], grad[:, band], grad_x[:, band]
            torch.mul(g, weight[0], out=out)
            out[:, :, :-1].addcmul_(g[:, :, 1:], weight[1])
            grad_weight[0] += _dot(g, here)
            grad_weight[1] += _dot(g[:, :, 1:], here[:, :, :-1])
            below = grad[:, band.start + 1 : band.stop + 1]
            rows = slice(band.start, min(band.stop, R - 1))
            out, here = grad_x[:, rows], x[:, rows]
            if below.shape[1]:
                out[:, :, :-1].addcmul_(below[:, :, 1:], weight[2])
                out.addcmul_(below, weight[3])
                out[:, :, 1:].addcmul_(below[:, :, :-1], weight[4])
                grad_weight[2] += _dot(below[:, :, 1:], here[:, :, :-1])
                grad_weight[3] += _dot(below, here)
                grad_weight[4] += _dot(below[:, :, :-1], here[:, :, 1:])
        return grad_x, grad_weight


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of products over all dimensions but the features: ``[D]``."""
    return (a * b).sum((0, 1, 2))


def check_conv(features: int, weight: Tensor, columns: int) -> None:
    """Raise ``ValueError`` unless the weight fits the features and there are several columns."""
    if weight.shape != (TAPS, features):
        raise ValueError(f"weight must be [{TAPS}, {features}], not {[*weight.shape]}")
    if columns < 2:
        raise ValueError(f"columns must be at least 2, not {columns}")


def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve ``x: [B, R, C, D]`` with ``weight: [5, D]``, in the weight's float32 or float64.

    Gradients flow to both. Raises ``ValueError`` on wrong shapes.
    """
    if x.ndim != 4:
        raise ValueError(f"x must be [B, R, C, D], not {[*x.shape]}")
    check_conv(x.shape[3], weight, x.shape[2])
    x = x.contiguous().to(weight.dtype)
    y: Tensor = _ShortConv.apply(x, weight)
    return y


def convolve_steps(x: Tensor, weight: Tensor, columns: int) -> Tensor:
    """Convolve the first S steps of images, ``x: [B, S, D]``, with ``columns`` steps per row."""
    B, S, D = x.shape
    missing = -S % columns  # steps missing in the last row
    padded = F.pad(x, (0, 0, 0, missing)) if missing else x  # padding by 0 would copy
    return short_conv(padded.view(B, -1, columns, D), weight).view(B, -1, D)[:, :S]
