"""Tap offsets of the short convolution (``kernels/short_conv.py``), as Triton functions."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tap_offset(TAP: tl.constexpr, columns):
    """Return how many steps back a tap reads."""
    if TAP == 0:
        steps = 0
    elif TAP == 1:
        steps = 1
    elif TAP == 2:
        steps = columns + 1
    elif TAP == 3:
        steps = columns
    else:
        steps = columns - 1
    return steps


@triton.jit
def tap_is_inside(TAP: tl.constexpr, t, columns):
    """Return which positions ``t`` have a tap within the image's columns.

    Rows are not checked: the caller compares the step with the tap's offset.
    """
    if TAP == 1 or TAP == 2:
        within = t % columns > 0
    elif TAP == 4:
        within = t % columns < columns - 1
    else:
        within = t >= 0
    return within
