"""Exact bits per dimension over a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from scanline.model.config import ModelConfig
from scanline.model.data.dataset import Dataset
from scanline.model.network import LinearTransformer

CPU_PIXELS = 4096  # per batch, so that the activations of a layer fit a core's caches
CUDA_BATCH = 64


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Bits/dim of each image of a data set, float64 ``[N]``."""

    each: NDArray[np.float64]

    @property
    def bits_per_dim(self) -> float:
        """Mean over the images."""
        return mean_and_standard_error(self.each)[0]

    @property
    def standard_error(self) -> float:
        """Standard error of the mean, infinite for one image."""
        return mean_and_standard_error(self.each)[1]

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self.each)

    def row(self) -> dict[str, float]:
        """Return the mean, its standard error and the number of images by name."""
        return {
            "bits_per_dim": self.bits_per_dim, "standard_error": self.standard_error,
            "images": self.images,
        }  # fmt: skip

    @property
    def finite_error(self) -> float | None:
        """The standard error, or None if it is infinite, because JSON has no infinity."""
        return self.standard_error if np.isfinite(self.standard_error) else None

    def __str__(self) -> str:
        return format_bits(f"{self.bits_per_dim:.4f}", f"{self.standard_error:.4f}", self.images)


def format_bits(mean: str, error: str, images: int) -> str:
    """Format a mean in bits/dim, without the error if there is only one image."""
    if images == 1:
        return f"{mean} bits/dim, one image"
    return f"{mean} ± {error} bits/dim, {images} images"


def mean_and_standard_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean of values ``[N]`` and its standard error, infinite if N is 1."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.inf
    return float(values.mean()), float(error)


def check_image_shape(config: ModelConfig, data: Dataset) -> None:
    """Raise ``ValueError`` if the images do not have the model's shape."""
    if data.images.shape[1:] != (config.height, config.width, config.channels):
        raise ValueError(
            f"the model draws {config.height} × {config.width} × {config.channels} images, "
            f"the data has {' × '.join(map(str, data.images.shape[1:]))}"
        )


@torch.no_grad()
def evaluate(
    model: LinearTransformer,
    data: Dataset,
    *,
    with_label: bool = False,
    batch: int | None = None,
    bf16: bool = False,
    device: torch.device | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> Evaluation:
    """Measure a model's bits/dim over a data set.

    Args:
        model: The network; it is put into evaluation mode.
        data: The images.
        with_label: Whether to condition on the true labels.
        batch: Images per batch; None chooses a size for the device.
        bf16: Whether to use bf16 autocast instead of float32.
        device: The device of the model.
        progress: Called with the number of images of each batch.

    Raises:
        ValueError: If the data does not fit the model, or has no labels that it knows.
    """
    config = model.eval().config
    check_image_shape(config, data)
    if with_label and (data.labels is None or data.classes != config.classes):
        found, expected = (", ".join(some) or "none" for some in (data.classes, config.classes))
        raise ValueError(
            f"the data's classes ({found}) are not the model's ({expected}): evaluate without "
            "labels"
        )
    if batch is None:
        cuda = device is not None and device.type == "cuda"
        batch = CUDA_BATCH if cuda else max(1, CPU_PIXELS // config.pixels)
    each: list[np.ndarray] = []
    for first in range(0, len(data), batch):
        images = torch.from_numpy(data.images[first : first + batch].copy()).to(device)
        labels = None
        if with_label and data.labels is not None:
            labels = torch.from_numpy(data.labels[first : first + batch].copy()).to(device)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
            parameters = model(images.flatten(1, 2), labels)
        bits = model.bits_from(parameters, images.flatten(1, 2))
        each.append(bits.double().sum(1).cpu().numpy() / config.dims)
        progress(len(images))
    return Evaluation(np.concatenate(each))
