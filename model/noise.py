"""An image's randomness: one array of uniforms that its own seed decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SEED = 2**64 - 1
_BITS = 23  # so that (k + 1/2) / 2²³ is exact in float32 and never 0 or 1


def image_seed(seed: int, index: int) -> int:
    """Give the seed of image ``index`` of a request: ``seed + index``, modulo 2⁶⁴."""
    return (seed + index) & MAX_SEED


def image_noise(seed: int, pixels: int, draws: int) -> NDArray[np.float32]:
    """Draw an image's uniforms in (0, 1) from Philox keyed by its seed: ``[pixels, draws]``.

    Raw generator words, not ``Generator.random``: numpy promises that those never change. Raises
    ``ValueError`` on a seed outside 0 … 2⁶⁴ - 1.
    """
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be 0 to {MAX_SEED}, not {seed}")
    words = np.random.Philox(key=seed).random_raw(pixels * draws) >> np.uint64(64 - _BITS)
    uniforms = (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-_BITS)
    return uniforms.reshape(pixels, draws)
