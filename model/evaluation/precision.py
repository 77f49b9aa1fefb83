"""Loss of likelihood from reduced precision in the ``native`` backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scanline.kernels.native.abi import Precision, precision_of
from scanline.model.data.dataset import Dataset
from scanline.model.decoders.base import InputBatch
from scanline.model.decoders.native import NativeDecoder
from scanline.model.evaluation.likelihood import format_bits, mean_and_standard_error
from scanline.model.network import LinearTransformer

BATCH = 64
MAX_COST = 0.002  # bits/dim that a checkpoint may lose by its recorded precision
MIN_IMAGES = 30  # with fewer, the standard error is unreliable
# Smallest --limit whose result may be recorded. A precision is measured by the differences of
# single images, so that a part of the test set suffices.
MIN_LIMITED_IMAGES = 1_000


@dataclass(frozen=True)
class PrecisionCost:
    """Mean bits/dim that a precision adds to float32, with its standard error.

    ``data`` is the name of the data set. The error is infinite for one image.
    """

    precision: Precision
    bits_per_dim: float
    standard_error: float
    images: int
    data: str

    @property
    def acceptable(self) -> bool:
        """True if enough images show, by two standard errors, a cost of at most ``MAX_COST``."""
        upper_bound = self.bits_per_dim + 2 * self.standard_error
        return upper_bound <= MAX_COST and self.images >= MIN_IMAGES

    def __str__(self) -> str:
        cost = format_bits(f"{self.bits_per_dim:+.5f}", f"{self.standard_error:.5f}", self.images)
        return f"{self.precision} costs {cost}"


def measure_precision_cost(
    network: LinearTransformer,
    data: Dataset,
    precision: str,
    threads: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> PrecisionCost:
    """Measure the bits/dim of a precision and of float32 without labels, in the native backend.

    Args:
        network: The network.
        data: The images.
        precision: The precision to compare with float32.
        threads: The number of cores, all by default.
        progress: Called with the number of images of each batch.

    Raises:
        BackendError: If the native backend cannot run here.
        ValueError: If the precision is unknown.
    """
    checked = precision_of(precision)
    decoders = [
        NativeDecoder(network, min(BATCH, len(data)), threads, precision=chosen)
        for chosen in ("float32", checked)
    ]
    costs: list[NDArray[np.float64]] = []
    for first in range(0, len(data), BATCH):
        exact, rounded = (
            _bits(decoder, data.images[first : first + BATCH]) for decoder in decoders
        )
        costs.append(rounded - exact)
        progress(len(exact))
    values = np.concatenate(costs)
    return PrecisionCost(checked, *mean_and_standard_error(values), len(values), data.title)


def _bits(decoder: NativeDecoder, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the bits/dim of images, by prefilling all their pixels: ``[B]``."""
    config = decoder.config
    inputs = InputBatch.empty(config, len(images))
    inputs.canvas[:] = images.reshape(inputs.canvas.shape)
    inputs.known[:] = True
    decoder.begin(range(len(images)), inputs)
    bits: NDArray[np.float64] = decoder.bits[: len(images)].sum(1, dtype=np.float64) / config.dims
    return bits
