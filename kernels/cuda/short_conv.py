"""Where the taps of the short convolution read (``kernels/short_conv.py``), for its kernels."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def distance(TAP: tl.constexpr, columns, stride):
    """Give how many steps before its own a tap of the convolution reads."""
    if TAP == 0:
        steps = 0 * stride
    elif TAP == 1:
        steps = stride
    elif TAP == 2:
        steps = columns + stride
    elif TAP == 3:
        steps = columns
    else:
        steps = columns - stride
    return steps


@triton.jit
def inside(TAP: tl.constexpr, t, columns, stride):
    """Say of positions whether what a tap reads there is of the image, above its first row or not.

    Left of the first column and right of the last there is nothing.
    """
    if TAP == 1 or TAP == 2:
        within = t % columns >= stride
    elif TAP == 4:
        within = t % columns < columns - stride
    else:
        within = t >= 0
    return within
