"""The uniforms that an image's seed decides, as a device function.

The definition is ``pixel_noise`` of ``model/noise.py``; the generator is Triton's own.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl


@triton.jit
def uniform(seed, particle, i):
    """Give uniform ``i`` of an image in (0, 1): a word of Philox 4x64-10, the upper 23 bits of it.

    All three are uint64 scalars; as numpy counts, block n of four words has the counter n + 1.
    """
    zero = tl.zeros([], tl.uint64)
    a, b, c, d = philox_impl(i // 4 + 1, zero, zero, zero, seed, particle)
    lane = i % 4
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return ((word >> 41).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608)
