"""Causal depthwise 2-D convolution with five taps: itself, left, above left, above, above right.

    y[r, c] = w₀ x[r, c] + w₁ x[r, c-1] + w₂ x[r-1, c-1] + w₃ x[r-1, c] + w₄ x[r-1, c+1]

Values outside the image are 0. Each feature has its own weights. Shapes: ``x, y: [B, R, C, D]``,
``weight: [5, D]``.

The implementation adds shifted slices, because torch's grouped convolution takes much longer.
Layers with pre-norm fuse the convolution with the norm (``kernels/ops/residual.py``).
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

TAPS = 5


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
    C, w, x = x.shape[2], weight, x.to(weight.dtype)
    padded = F.pad(x, (0, 0, 1, 1, 1, 0))  # a column on each side and a row above
    left, above = padded[:, 1:, :C], padded[:, :-1]
    return (
        w[0] * x
        + w[1] * left
        + w[2] * above[:, :, :C]
        + w[3] * above[:, :, 1 : C + 1]
        + w[4] * above[:, :, 2:]
    )


def convolve_steps(x: Tensor, weight: Tensor, columns: int) -> Tensor:
    """Convolve the first S steps of images, ``x: [B, S, D]``, with ``columns`` steps per row."""
    B, S, D = x.shape
    missing = -S % columns  # steps missing in the last row
    padded = F.pad(x, (0, 0, 0, missing)) if missing else x  # padding by 0 would copy
    return short_conv(padded.view(B, -1, columns, D), weight).flatten(1, 2)[:, :S]
