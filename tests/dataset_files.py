"""Small MNIST and CIFAR-10 files in the published formats, for tests."""

import gzip
import io
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from scanline.model.data import download

Bytes = npt.NDArray[np.uint8]
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
}


def idx(values: Bytes) -> bytes:
    return struct.pack(f">{values.ndim + 1}I", 0x0800 + values.ndim, *values.shape) + (
        values.tobytes()
    )


def mnist_arrays(count: int = 6) -> tuple[Bytes, Bytes]:
    values = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
    return values, (np.arange(count) % 10).astype(np.uint8)


def write_mnist(
    folder: Path, suffix: str = "", *, changes: dict[str, bytes] | None = None, count: int = 6
) -> tuple[Bytes, Bytes]:
    images, labels = mnist_arrays(count)
    contents = {"images": idx(images), "labels": idx(labels)} | (changes or {})
    folder.mkdir(parents=True, exist_ok=True)
    for prefix in ("train", "t10k"):
        for kind, dimensions in (("images", 3), ("labels", 1)):
            path = folder / f"{prefix}-{kind}-idx{dimensions}-ubyte{suffix}"
            path.write_bytes(PACKERS[suffix](contents[kind]))
    return images, labels


def cifar_batch(seed: int = 0) -> tuple[Bytes, Bytes, bytes]:
    count = 5
    images = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)
    labels = ((np.arange(count) + seed) % 10).astype(np.uint8)
    planes = images.transpose(0, 3, 1, 2).reshape(count, 3072)
    return images, labels, np.concatenate([labels[:, None], planes], axis=1).tobytes()


def write_cifar(folder: Path, suffix: str = "") -> Bytes:
    """Write five training batches and a test batch; return the training images."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = [cifar_batch(seed=seed) for seed in range(6)]
    for i, (_, _, content) in enumerate(batches):
        name = f"data_batch_{i}.bin" if i else "test_batch.bin"
        (folder / (name + suffix)).write_bytes(PACKERS[suffix](content))
    return np.concatenate([images for images, _, _ in batches[1:]])


def write_archive(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def hide_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the data sets of this machine."""
    for name in ("SCANLINE_DATA_DIR", "SCANLINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "__file__", "/nonexistent/checkout/model/data/download.py")
    monkeypatch.setenv("HOME", "/nonexistent/home")
