"""Uniforms: constant for ever, and strictly inside (0, 1)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from scanline.model.noise import (
    MAX_SEED,
    image_noise,
    image_seed,
    pixel_noise,
    random_label,
    resampling_noise,
)

# The numerators k of (k + 1/2) / 2²³. If these change, every image ever drawn changes.
GOLDEN = {
    (0, 4, 3): [
        [96861, 2026261, 934707],
        [4734653, 4214265, 2328724],
        [7940189, 8271723, 2129219],
        [1636202, 5970255, 1101127],
    ],
    (123456789, 2, 2): [[6931122, 3693846], [3152971, 5167806]],
    (MAX_SEED, 1, 4): [[1970832, 6017238, 3449205, 6007447]],
}
GOLDEN_SHA256 = "90b34686ed8289ec5733bedcc55bc0a6808c1c5d1b81f4c478baaa924979e854"


@pytest.mark.parametrize(("seed", "pixels", "draws"), GOLDEN)
def test_the_uniforms_never_change(seed: int, pixels: int, draws: int) -> None:
    uniforms = image_noise(seed, pixels, draws)
    assert uniforms.dtype == np.float32
    numerators = uniforms.astype(np.float64) * 2**23 - 0.5
    assert numerators.tolist() == GOLDEN[seed, pixels, draws]


def test_a_whole_image_never_changes() -> None:
    digest = hashlib.sha256(image_noise(7, 784, 2).astype("<f4").tobytes())
    assert digest.hexdigest() == GOLDEN_SHA256


@pytest.mark.parametrize("words", [0, 2**41 - 1, 2**63, MAX_SEED - 2**41, MAX_SEED])
def test_uniforms_are_inside_zero_and_one(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Constant:
        def __init__(self, key: int, counter: int) -> None:
            pass

        def random_raw(self, count: int) -> np.ndarray:
            return np.full(count, words, np.uint64)

    monkeypatch.setattr(np.random, "Philox", Constant)
    uniforms = image_noise(1, 2, 2)
    assert uniforms.min() > 0
    assert uniforms.max() < 1
    assert abs(float(uniforms[0, 0]) - words / 2**64) <= 2**-24


@pytest.mark.parametrize("draws", [1, 3, 4])
@pytest.mark.parametrize(("seed", "particle"), [(7, 0), (MAX_SEED, 5), (0, MAX_SEED)])
def test_pixel_noise_is_a_row_of_image_noise(seed: int, particle: int, draws: int) -> None:
    whole = image_noise(seed, 30, draws, particle)
    for pixel in range(30):
        assert np.array_equal(pixel_noise(seed, pixel, draws, particle), whole[pixel])


def test_noise_does_not_depend_on_the_image_length() -> None:
    assert np.array_equal(image_noise(5, 10, 3), image_noise(5, 20, 3)[:10])


def test_image_seeds_are_consecutive() -> None:
    assert image_seed(40, 2) == 42
    assert image_seed(0, 0) == 0
    assert image_seed(MAX_SEED, 0) == MAX_SEED
    assert image_seed(MAX_SEED, 1) == 0  # wraps around
    assert image_seed(MAX_SEED - 1, 5) == 3
    assert len({image_seed(MAX_SEED - 10, index) for index in range(50)}) == 50


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 2**70])
def test_seeds_outside_64_bits_are_rejected(seed: int) -> None:
    with pytest.raises(ValueError, match=f"seed must be 0 to {MAX_SEED}, not {seed}"):
        image_noise(seed, 1, 1)


def test_other_streams_never_change() -> None:
    """The streams of particles, of resampling and of random labels."""
    for uniforms, numerators in (
        (image_noise(0, 1, 3, 1)[0], [6822908, 6302624, 5634200]),
        (resampling_noise(0, 3), [3438928, 5420562, 8037128]),
    ):
        assert (uniforms.astype(np.float64) * 2**23 - 0.5).tolist() == numerators
    labels = [random_label(seed, 10) for seed in range(12)]
    assert labels == [4, 9, 7, 1, 2, 5, 3, 7, 6, 8, 0, 1]
