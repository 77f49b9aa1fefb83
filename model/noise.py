"""An image's randomness: one array of uniforms that its own seed decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_SEED = 2**64 - 1
RANDOM = "random"  # the label of "a class chosen by each image's seed"
# Streams of Philox beside those of the particles, which are counted from 0.
_RESAMPLING, _LABEL = 2**32, 2**32 + 1
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
    return _uniforms([seed], particle, pixels * draws).reshape(pixels, draws)


def image_noises(seeds: Sequence[int], pixels: int, draws: int) -> NDArray[np.float32]:
    """Draw ``image_noise`` of each seed: ``[images, pixels, draws]``."""
    return _uniforms(seeds, 0, pixels * draws).reshape(len(seeds), pixels, draws)


def resampling_noise(seed: int, count: int) -> NDArray[np.float32]:
    """Draw the uniforms by which an image's particles are chosen: ``[count]``."""
    return _uniforms([seed], _RESAMPLING, count).reshape(count)


def random_label(seed: int, classes: int) -> int:
    """Choose one of so many classes for an image by its seed."""
    return int(_uniforms([seed], _LABEL, 1)[0, 0] * classes)


def _uniforms(seeds: Sequence[int], stream: int, count: int) -> NDArray[np.float32]:
    words = np.empty((len(seeds), count), np.uint64)
    # A new generator asks the system for entropy, which takes longer than all the rest: one is
    # made, and given each key in turn.
    generator = np.random.Philox(key=0)
    fresh = generator.state
    for row, seed in zip(words, seeds, strict=True):
        if not 0 <= seed <= MAX_SEED:
            raise ValueError(f"a seed must be 0 to {MAX_SEED}, not {seed}")
        fresh["state"]["key"][:] = seed, stream
        generator.state = fresh
        row[:] = generator.random_raw(count)
    halves = (words >> np.uint64(64 - _BITS)).astype(np.float32) + np.float32(0.5)
    uniforms: NDArray[np.float32] = halves * np.float32(2.0**-_BITS)
    return uniforms
