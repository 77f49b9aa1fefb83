"""What a step costs at least on this machine, for timings to stand beside.

A step has to do its operations and to move its bytes. Each takes a time at the machine's best
rates, which the native code measures; the longer one is the step's limit.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from scanline.kernels.native.abi import Peaks, measure_bandwidth, measure_peaks
from scanline.model.config import ModelConfig

_WEIGHT_BYTES = {"float32": 4, "bf16": 2, "int16": 2, "int8": 1}


def operations_per_step(config: ModelConfig) -> int:
    """Floating-point operations of one step of one image: products, and the state's sums."""
    return 2 * _weights(config) + 4 * _state(config)


def bytes_per_step(config: ModelConfig, slots: int, precision: str) -> int:
    """Bytes that one step of all slots has to move: weights once, states there and back."""
    return _WEIGHT_BYTES[precision] * _weights(config) + 8 * _state(config) * slots


def _weights(c: ModelConfig) -> int:
    layer = 4 * c.d_model * c.d_model + 2 * c.d_model * c.d_ff
    return c.n_layers * layer + c.d_model * c.head_outputs


def _state(c: ModelConfig) -> int:
    return c.n_layers * c.n_heads * c.head_size * (c.head_size + 1)


class Bound(NamedTuple):
    """The least time of a step, and what sets it: ``compute`` or ``bytes``."""

    name: str
    seconds: float


class Roofline:
    """This machine's best, with the native code's threads; measuring it takes some seconds."""

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.peaks: Peaks = measure_peaks(library, threads)
        self._library, self._threads = library, threads

    def bound(self, config: ModelConfig, slots: int, precision: str) -> Bound:
        """Give the limit of one step of all slots, its products in ``precision``, else float32.

        Bytes count at the rate at which as much memory as weights and states take is read over and
        over, which is a cache's where they fit one. Takes a quarter of a second.
        """
        rates: dict[str, float] = self.peaks._asdict()
        products = 2 * _weights(config) / rates[f"{precision}_operations"]
        sums = 4 * _state(config) / self.peaks.float32_operations
        resident = _WEIGHT_BYTES[precision] * _weights(config) + 4 * _state(config) * slots
        rate = measure_bandwidth(self._library, self._threads, resident)
        limits = (
            Bound("compute", slots * (products + sums)),
            Bound("bytes", bytes_per_step(config, slots, precision) / rate),
        )
        return max(limits, key=lambda limit: limit.seconds)
