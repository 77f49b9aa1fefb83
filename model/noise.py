"""Counter-based random numbers of an image, determined by its seed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_SEED = 2**64 - 1
RANDOM = "random"  # label value: the seed of each image chooses its class
# Philox streams; the particles have the streams from 0.
_RESAMPLING, _LABEL = 2**32, 2**32 + 1
_BLOCK = 4  # words per Philox counter value
_BITS = 23  # (k + 1/2) / 2²³ is exact in float32 and never 0 or 1


def image_seed(seed: int, index: int) -> int:
    """Return the seed of image ``index`` of a request: ``seed + index`` modulo 2⁶⁴."""
    return (seed + index) & MAX_SEED


def image_noise(seed: int, pixels: int, draws: int, particle: int = 0) -> NDArray[np.float32]:
    """Return the uniforms in (0, 1) of an image: float32 ``[pixels, draws]``.

    They are raw words of Philox keyed by the seed, because numpy guarantees that those never
    change, unlike the output of ``Generator.random``.

    Args:
        seed: From 0 to 2⁶⁴ - 1.
        pixels: The number of pixels.
        draws: The number of uniforms per pixel.
        particle: The particle number. Each particle has its own uniforms; an image without
            particles has those of particle 0.

    Raises:
        ValueError: If the seed is out of range.
    """
    return _uniforms(seed, particle, 0, pixels * draws).reshape(pixels, draws)


def pixel_noise(seed: int, pixel: int, draws: int, particle: int = 0) -> NDArray[np.float32]:
    """Return the uniforms of one pixel, a row of ``image_noise``: float32 ``[draws]``.

    Philox is counter-based: its n-th block of four words is a function of n and the key. So a
    decoder needs only the seed. ``kernels/native/noise.h`` and ``kernels/cuda/noise.py`` implement
    the same function.
    """
    return _uniforms(seed, particle, pixel * draws, draws)


def resampling_noise(seed: int, count: int) -> NDArray[np.float32]:
    """Return the uniforms for resampling the particles of an image: float32 ``[count]``."""
    return _uniforms(seed, _RESAMPLING, 0, count)


def random_label(seed: int, classes: int) -> int:
    """Choose a class in ``range(classes)`` for an image by its seed."""
    return int(_uniforms(seed, _LABEL, 0, 1)[0] * classes)


def _uniforms(seed: int, stream: int, first: int, count: int) -> NDArray[np.float32]:
    """Return uniforms ``first`` to ``first + count - 1`` of a stream: ``[count]``."""
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"seed must be 0 to {MAX_SEED}, not {seed}")
    block, skipped = divmod(first, _BLOCK)
    generator = np.random.Philox(key=seed | stream << 64, counter=block)
    words = generator.random_raw(skipped + count)[skipped:]
    centred = (words >> np.uint64(64 - _BITS)).astype(np.float32) + np.float32(0.5)
    uniforms: NDArray[np.float32] = centred * np.float32(2.0**-_BITS)
    return uniforms
