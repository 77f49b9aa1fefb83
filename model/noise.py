"""An image's randomness: one array of uniforms that its own seed decides."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SEED = 2**64 - 1
RANDOM = "random"  # the label of "a class chosen by each image's seed"
# Streams of Philox beside those of the particles, which are counted from 0.
_RESAMPLING, _LABEL = 2**32, 2**32 + 1
_BLOCK = 4  # words that Philox makes at once
_BITS = 23  # so that (k + 1/2) / 2²³ is exact in float32 and never 0 or 1


def image_seed(seed: int, index: int) -> int:
    """Give the seed of image ``index`` of a request: ``seed + index``, modulo 2⁶⁴."""
    return (seed + index) & MAX_SEED


def image_noise(seed: int, pixels: int, draws: int, particle: int = 0) -> NDArray[np.float32]:
    """Draw an image's uniforms in (0, 1) from Philox keyed by its seed: ``[pixels, draws]``.

    Each ``particle`` of an image has uniforms of its own, the first those of an image alone. Raw
    generator words, not ``Generator.random``: numpy promises that those never change. Raises
    ``ValueError`` on a seed outside 0 … 2⁶⁴ - 1.
    """
    return _uniforms(seed, particle, 0, pixels * draws).reshape(pixels, draws)


def pixel_noise(seed: int, pixel: int, draws: int, particle: int = 0) -> NDArray[np.float32]:
    """Draw the uniforms of one pixel alone, the same as in all of ``image_noise``: ``[draws]``.

    Philox counts: its n-th four words are a function of n and the key. So a decoder needs the seed
    only, and ``kernels/native/noise.h`` and ``kernels/cuda/noise.py`` do as this does.
    """
    return _uniforms(seed, particle, pixel * draws, draws)


def resampling_noise(seed: int, count: int) -> NDArray[np.float32]:
    """Draw the uniforms by which an image's particles are chosen: ``[count]``."""
    return _uniforms(seed, _RESAMPLING, 0, count)


def random_label(seed: int, classes: int) -> int:
    """Choose one of so many classes for an image by its seed."""
    return int(_uniforms(seed, _LABEL, 0, 1)[0] * classes)


def _uniforms(seed: int, stream: int, first: int, count: int) -> NDArray[np.float32]:
    """Give the uniforms ``first``, ``first + 1``, … of a stream: ``[count]``."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be 0 to {MAX_SEED}, not {seed}")
    block, skipped = divmod(first, _BLOCK)
    generator = np.random.Philox(key=seed | stream << 64, counter=block)
    words = generator.random_raw(skipped + count)[skipped:]
    halves = (words >> np.uint64(64 - _BITS)).astype(np.float32) + np.float32(0.5)
    uniforms: NDArray[np.float32] = halves * np.float32(2.0**-_BITS)
    return uniforms
