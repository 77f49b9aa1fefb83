"""What it costs a model to be drawn in fewer bits by the ``native`` backend."""

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
MAX_COST = 0.002  # bits/dim: what a checkpoint may lose by the precision that it names
MIN_IMAGES = 30  # of fewer, two standard errors say too little


@dataclass(frozen=True)
class PrecisionCost:
    """Bits/dim that a precision adds to float32's: the mean over images, and its standard error.

    ``data`` names the set. Of one image the error is infinite.
    """

    precision: Precision
    bits_per_dim: float
    standard_error: float
    images: int
    data: str

    @property
    def acceptable(self) -> bool:
        """Whether it is surely (two standard errors, of enough images) at most ``MAX_COST``."""
        surely = self.bits_per_dim + 2 * self.standard_error <= MAX_COST
        return surely and self.images >= MIN_IMAGES

    def __str__(self) -> str:
        figure = format_bits(f"{self.bits_per_dim:+.5f}", f"{self.standard_error:.5f}", self.images)
        return f"{self.precision} costs {figure}"


def measure_precision_cost(
    network: LinearTransformer,
    data: Dataset,
    precision: str,
    threads: int | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> PrecisionCost:
    """Measure every image without a label in float32 and in ``precision``, in the native backend.

    ``progress`` is told how many images each batch held. Raises ``BackendError`` where that backend
    cannot run, and ``ValueError`` on an unknown precision.
    """
    named = precision_of(precision)
    decoders = [
        NativeDecoder(network, min(BATCH, len(data)), threads, precision=chosen)
        for chosen in ("float32", named)
    ]
    each: list[NDArray[np.float64]] = []
    for first in range(0, len(data), BATCH):
        exact, rounded = (
            _bits(decoder, data.images[first : first + BATCH]) for decoder in decoders
        )
        each.append(rounded - exact)
        progress(len(exact))
    values = np.concatenate(each)
    return PrecisionCost(named, *mean_and_standard_error(values), len(values), data.title)


def _bits(decoder: NativeDecoder, images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Give the bits/dim of some images, all of whose pixels are known: ``[B]``."""
    config = decoder.config
    inputs = InputBatch.empty(config, len(images))
    inputs.canvas[:] = images.reshape(inputs.canvas.shape)
    inputs.known[:] = True
    decoder.begin(range(len(images)), inputs)
    bits: NDArray[np.float64] = decoder.bits[: len(images)].sum(1, dtype=np.float64) / config.dims
    return bits
