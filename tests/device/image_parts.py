"""Files of CIFAR-10's training images that fit limited transfers.

``python -m tests.device.image_parts FOLDER`` writes them. A part holds the labels and mosaics of
32 × 32 images as lossless WebP, in about 55 % of the published size.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from scanline.model.config import CIFAR10_CLASSES
from scanline.model.data.dataset import Dataset
from scanline.model.data.published_sets import load_dataset

SIDE = 32  # images per side of a mosaic
PER_MOSAIC = SIDE * SIDE
PART_IMAGES = 34 * PER_MOSAIC  # 59 MB of CIFAR-10


def to_mosaic(images: NDArray[np.uint8]) -> bytes:
    """Encode up to 1,024 RGB images ``[n, H, W, 3]``; missing ones are black."""
    n, H, W, C = images.shape
    padded = np.zeros((PER_MOSAIC, H, W, C), np.uint8)
    padded[:n] = images
    mosaic = padded.reshape(SIDE, SIDE, H, W, C).swapaxes(1, 2).reshape(SIDE * H, SIDE * W, C)
    encoded = io.BytesIO()
    Image.fromarray(mosaic).save(encoded, "WEBP", lossless=True, quality=60, method=4)
    return encoded.getvalue()


def from_mosaic(encoded: bytes) -> NDArray[np.uint8]:
    """Decode a mosaic to its 1,024 images ``[1024, H, W, 3]``."""
    with Image.open(io.BytesIO(encoded)) as picture:
        mosaic = np.asarray(picture)
    H, W = mosaic.shape[0] // SIDE, mosaic.shape[1] // SIDE
    return mosaic.reshape(SIDE, H, SIDE, W, 3).swapaxes(1, 2).reshape(-1, H, W, 3)


def write_parts(data: Dataset, folder: Path, part_images: int = PART_IMAGES) -> list[Path]:
    """Write a data set of RGB images with labels as ``part1.npz``, ``part2.npz``, …"""
    assert data.labels is not None
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for first in range(0, len(data), part_images):
        images = data.images[first : first + part_images]
        labels = data.labels[first : first + part_images].astype(np.uint8)
        mosaics = [
            np.frombuffer(to_mosaic(images[i : i + PER_MOSAIC]), np.uint8)
            for i in range(0, len(images), PER_MOSAIC)
        ]
        paths.append(folder / f"part{len(paths) + 1}.npz")
        np.savez(paths[-1], labels, *mosaics)
    return paths


def read_parts(paths: Sequence[Path]) -> Dataset:
    """Read parts, in this order, as a CIFAR-10 data set."""
    images, labels = [], []
    for path in paths:
        with np.load(path) as part:
            labels.append(part["arr_0"])
            mosaics = [from_mosaic(part[f"arr_{i}"].tobytes()) for i in range(1, len(part.files))]
        images.append(np.concatenate(mosaics)[: len(labels[-1])])
    joined = np.concatenate(labels).astype(np.int64)
    return Dataset("cifar10", np.concatenate(images), joined, CIFAR10_CLASSES)


def main() -> None:
    """Write the training images as parts and print the files' sizes."""
    parser = argparse.ArgumentParser(prog="image_parts", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder for the parts")
    parser.add_argument("--data-dir", type=Path, help="folder of CIFAR-10")
    parser.add_argument("--part-images", type=int, default=PART_IMAGES, help="images per part")
    options = parser.parse_args()
    data = load_dataset("cifar10", "train", options.data_dir)
    for path in write_parts(data, options.folder, options.part_images):
        print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
