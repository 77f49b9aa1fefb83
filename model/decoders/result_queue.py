"""Results of launches on a device, which are copied to the host while later launches run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scanline.model.decoders.device import Device


@dataclass(frozen=True)
class _Result:
    """Results of a launch or prefill that are not yet in the host's arrays.

    Attributes:
        slots: The launched slots.
        generations: Numbers of resets of the slots at the launch. If a slot has been reset since,
            it holds another image and the results are dropped.
        positions: Positions of the slots after the launch.
        pixels: Indices of the drawn pixels over all slots, ``[slots, pixels]``.
        values: Values of the drawn pixels.
        bits: Bits of the drawn pixels.
        done: Event that marks the end of the copies, or None if they are complete.
    """

    slots: NDArray[np.int32]
    generations: NDArray[np.int64]
    positions: NDArray[np.int32]
    pixels: NDArray[np.int64]
    values: Tensor
    bits: Tensor
    done: torch.cuda.Event | None


class ResultQueue:
    """Queue of results, which ``synchronize`` writes into the host's arrays, the oldest first.

    Args:
        device: The device.
        buffers: Its buffers, of which ``canvas`` and ``bits`` are copied.
        canvas: The host's pixels, uint8 ``[N, T, C]``.
        bits: The host's bits, float32 ``[N, T]``.
        positions: The host's positions, int32 ``[N]``.
    """

    def __init__(
        self, device: Device, buffers: Mapping[str, Tensor], canvas: NDArray[np.uint8],
        bits: NDArray[np.float32], positions: NDArray[np.int32],
    ) -> None:  # fmt: skip
        self._device, self._buffers = device, buffers
        self._canvas, self._bits, self._positions = canvas, bits, positions
        self._generations = np.zeros(len(positions), np.int64)  # number of resets of each slot
        self._pending: deque[_Result] = deque()

    def drop(self, slots: NDArray[np.int32]) -> None:
        """Drop the pending results of slots, which now hold other images."""
        self._generations[slots] += 1

    def push(
        self, slots: NDArray[np.int32], before: NDArray[np.int32], after: NDArray[np.int32]
    ) -> None:
        """Queue the copy of the pixels from ``before`` to ``after`` of each slot."""
        # If a slot has fewer pixels than another, its last one is repeated.
        offsets = np.arange(int((after - before).max()))
        offsets = np.minimum(before[:, None] + offsets, after[:, None] - 1)
        pixels = slots[:, None].astype(np.int64) * self._canvas.shape[1] + offsets
        index = self._device.upload(pixels.ravel())
        values = self._device.download(self._buffers["canvas"].flatten(0, 1)[index])
        bits = self._device.download(self._buffers["bits"].flatten()[index])
        done = self._device.record_event()
        generations = self._generations[slots]
        self._pending.append(_Result(slots, generations, after, pixels, values, bits, done))

    def synchronize(self, remaining: int = 0) -> None:
        """Wait for all results but the last ``remaining``, and write them to the arrays."""
        C = self._canvas.shape[2]
        while len(self._pending) > remaining:
            result = self._pending.popleft()
            if result.done is not None:
                result.done.synchronize()
            current = self._generations[result.slots] == result.generations
            pixels = result.pixels[current].ravel()
            values = result.values.numpy().reshape(*result.pixels.shape, C)
            bits = result.bits.numpy().reshape(result.pixels.shape)
            self._canvas.reshape(-1, C)[pixels] = values[current].reshape(-1, C)
            self._bits.reshape(-1)[pixels] = bits[current].ravel()
            self._positions[result.slots[current]] = result.positions[current]
