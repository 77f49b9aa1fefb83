"""Uniform random numbers of an image (``pixel_noise`` of ``model/noise.py``) in Triton."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl


@triton.jit
def uniform(seed, particle, i):
    """Return uniform number ``i`` of an image in (0, 1), from Philox 4x64-10.

    It is the upper 23 bits of word ``i``. All arguments are uint64 scalars. As in numpy, block n of
    four words has the counter n + 1.
    """
    zero = tl.zeros([], tl.uint64)
    a, b, c, d = philox_impl(i // 4 + 1, zero, zero, zero, seed, particle)
    lane = i % 4
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return ((word >> 41).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608)
