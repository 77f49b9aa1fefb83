"""Tests of the files of training images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scanline.model.config import CIFAR10_CLASSES
from scanline.model.data.dataset import Dataset
from tests.device.image_parts import read_parts, write_parts


def test_parts_hold_the_same_images_and_labels(tmp_path: Path) -> None:
    """Two parts, the first of two mosaics."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (1_500, 4, 6, 3), np.uint8)
    labels = random.integers(0, 10, 1_500)
    data = Dataset("cifar10", images, labels, CIFAR10_CLASSES)
    parts = write_parts(data, tmp_path / "parts", part_images=1_100)
    assert [part.name for part in parts] == ["part1.npz", "part2.npz"]
    read = read_parts(parts)
    np.testing.assert_array_equal(read.images, images)
    np.testing.assert_array_equal(read.labels, labels)
    assert read.classes == CIFAR10_CLASSES
