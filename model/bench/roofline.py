"""Roofline model: the shortest possible time of a decoding step on this machine.

A step must compute its operations and move its bytes. The native code measures the machine's peak
rates of both; the longer of the two times bounds the step.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from scanline.kernels.native.abi import Peaks, measure_bandwidth, measure_peaks
from scanline.model.config import ModelConfig

_WEIGHT_BYTES = {"float32": 4, "bf16": 2, "int16": 2, "int8": 1, "int10": 1.25}
_OPERATIONS = {"int10": "int16"}  # precisions that another one's instructions multiply


def operations_per_step(config: ModelConfig) -> int:
    """Return the floating-point operations of one step of one image: products and state updates."""
    return 2 * _weights(config) + 4 * _state(config)


def bytes_per_step(config: ModelConfig, slots: int, precision: str) -> float:
    """Return the bytes that one step of all slots must move: weights once, states twice."""
    return _WEIGHT_BYTES[precision] * _weights(config) + 8 * _state(config) * slots


def _weights(c: ModelConfig) -> int:
    layer = 4 * c.d_model * c.d_model + 2 * c.d_model * c.d_ff
    return c.n_layers * layer + c.d_model * c.head_outputs


def _state(c: ModelConfig) -> int:
    return c.n_layers * c.n_heads * c.head_size * (c.head_size + 1)


class Bound(NamedTuple):
    """Lower bound of a step's time, its cause (``compute`` or ``bytes``), and the bandwidth."""

    name: str
    seconds: float
    bytes_per_second: float


class Roofline:
    """Peak rates of this machine, measured by the native code in a few seconds.

    Args:
        library: Native code.
        threads: Number of threads.
    """

    def __init__(self, library: ctypes.CDLL, threads: int) -> None:
        self.peaks: Peaks = measure_peaks(library, threads)
        self._library, self._threads = library, threads

    def bound(self, config: ModelConfig, slots: int, precision: str) -> Bound:
        """Measure the bound of one step of all slots in 0.25 seconds.

        Products are in ``precision`` and state updates in float32. The bandwidth is that of reading
        as much memory as weights and states occupy again and again: a cache's if they fit.
        """
        rates: dict[str, float] = self.peaks._asdict()
        kind = _OPERATIONS.get(precision, precision)
        products = 2 * _weights(config) / rates[f"{kind}_operations"]
        sums = 4 * _state(config) / self.peaks.float32_operations
        resident = _WEIGHT_BYTES[precision] * _weights(config) + 4 * _state(config) * slots
        rate = measure_bandwidth(self._library, self._threads, int(resident))
        limits = (
            Bound("compute", slots * (products + sums), rate),
            Bound("bytes", bytes_per_step(config, slots, precision) / rate, rate),
        )
        return max(limits, key=lambda limit: limit.seconds)
